"""The databases that can be copied."""

from __future__ import annotations

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.base import ConnectionSettings, Source


def open_source(settings: ConnectionSettings) -> Source:
    """The source behind ``settings``. Opens no session.

    :raises ConfigurationError: the kind of database is not one that can be copied.
    """
    # Imported late: who copies MySQL should not have to install what PostgreSQL needs.
    if settings.kind == "mysql":
        from airflow_provider_cdc.sources.mysql import MysqlSource

        return MysqlSource(settings)
    raise ConfigurationError(
        f"cannot copy from a {settings.kind!r} connection",
        mend="use a connection of type cdc_mysql or mysql",
    )
