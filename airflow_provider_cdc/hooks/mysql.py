"""The hook for MySQL connections: type ``cdc_mysql``, and the stock type ``mysql``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks.base import CdcHook
from airflow_provider_cdc.sources.mysql.server.session import query, session


class CdcMysqlHook(CdcHook):
    """A connection to a MySQL server from which tables are copied."""

    conn_type = "cdc_mysql"
    default_conn_name = "cdc_mysql"
    hook_name = "MySQL (CDC)"
    own_tls_fields = ("tls_server_key",)
    stock_refused = ("unix_socket",)

    def _describe_server(self) -> str:
        settings = self.settings()
        with session(settings) as connection:
            ((version, gtid_mode),) = query(connection, "SELECT @@version, @@gtid_mode")
        return f"MySQL {version} at {settings.address}, gtid_mode {gtid_mode}"

    def _stock_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        # Airflow's own MySqlHook reads `ssl` (a dict, or its JSON text) and `ssl_mode`.
        files = extra.get("ssl") or {}
        if isinstance(files, str):
            try:
                files = json.loads(files)
            except ValueError:
                files = None
        if not isinstance(files, Mapping):
            raise ConfigurationError(
                "the field ssl of the connection's extra is not a JSON object",
                where=where,
                hint='write it like {"ssl": {"ca": "/etc/mysql/ca.pem"}}',
            )
        tls = {name: str(files[name]) for name in ("ca", "cert", "key") if files.get(name)}
        if mode := extra.get("ssl_mode"):
            tls["mode"] = str(mode).lower()
        return {**tls, **self._our_own(extra)}
