"""The hook for PostgreSQL connections: type ``cdc_postgres``, and the stock type ``postgres``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks.base import CdcHook
from airflow_provider_cdc.sources.postgres.server.session import CHANNEL_BINDING, TLS_MODES, query, session


class CdcPostgresHook(CdcHook):
    """A connection to a PostgreSQL database from which tables are copied. The connection's field ``schema`` is the name
    of the database."""

    conn_type = "cdc_postgres"
    default_conn_name = "cdc_postgres"
    hook_name = "PostgreSQL (CDC)"
    own_tls_fields = ("tls_channel_binding",)
    stock_refused = ("hostaddr", "service", "requirepeer", "require_auth", "sslcrl", "sslcrldir")

    def _describe_server(self) -> str:
        settings = self.settings()
        with session(settings) as connection:
            ((version, level),) = query(
                connection, "SELECT current_setting('server_version'), current_setting('wal_level')"
            )
        return f"PostgreSQL {version} at {settings.address}, wal_level {level}"

    def _stock_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        # The fields that Airflow's own PostgresHook passes to libpq.
        modes = {extra_name: option_name for option_name, extra_name in TLS_MODES.items()} | {"allow": "preferred"}
        names = {"sslrootcert": "ca", "sslcert": "cert", "sslkey": "key", "channel_binding": CHANNEL_BINDING}
        tls = {
            option_name: str(extra[extra_name]) for extra_name, option_name in names.items() if extra.get(extra_name)
        }
        if mode := extra.get("sslmode"):
            if mode not in modes:
                raise ConfigurationError(
                    f"the field sslmode of the connection's extra is {mode!r}",
                    where=where,
                    hint=f"use one of {', '.join(modes)}",
                )
            tls["mode"] = modes[mode]
        return {**tls, **self._our_own(extra)}
