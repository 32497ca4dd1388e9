"""From an Airflow connection to the database behind it."""

from __future__ import annotations

from airflow_provider_cdc import airflow_version

airflow_version.check()

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook  # noqa: E402

from airflow_provider_cdc.errors import ConfigurationError  # noqa: E402
from airflow_provider_cdc.hooks.base import CdcHook  # noqa: E402


def open_hook(conn_id: str) -> CdcHook:
    """The hook for the kind of database that the connection's type names.

    :raises ConfigurationError: there is no such connection, or its type is not one that can be copied from.
    """
    try:
        kind = BaseHook.get_connection(conn_id).conn_type
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            "there is no such connection",
            where=f"source_conn_id {conn_id!r}",
            hint="create it, with the type cdc_mysql or cdc_postgres, or correct source_conn_id",
        ) from error
    # Imported late: who copies MySQL should not have to install what PostgreSQL needs.
    if kind in ("cdc_mysql", "mysql"):
        from airflow_provider_cdc.hooks.mysql import CdcMysqlHook

        return CdcMysqlHook(conn_id)
    if kind in ("cdc_postgres", "postgres"):
        try:
            from airflow_provider_cdc.hooks.postgres import CdcPostgresHook
        except ImportError as error:
            raise ConfigurationError(
                f"what PostgreSQL needs is not installed: {error}",
                where=f"source_conn_id {conn_id!r}",
                hint="pip install 'airflow-provider-cdc[postgres]'",
            ) from error
        return CdcPostgresHook(conn_id)
    raise ConfigurationError(
        f"cannot copy from a connection of type {kind!r}",
        where=f"source_conn_id {conn_id!r}",
        hint="use a connection of type cdc_mysql, mysql, cdc_postgres or postgres",
    )
