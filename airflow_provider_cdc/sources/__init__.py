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
    if settings.kind == "postgres":
        try:
            from airflow_provider_cdc.sources.postgres import PostgresSource
        except ImportError as error:
            raise ConfigurationError(
                f"what PostgreSQL needs is not installed: {error}",
                hint="pip install 'airflow-provider-cdc[postgres]', in Airflow and where Spark's Python runs",
            ) from error
        return PostgresSource(settings)
    raise ConfigurationError(
        f"cannot copy from a {settings.kind!r} connection",
        hint="use a connection of type cdc_mysql, mysql, cdc_postgres or postgres",
    )
