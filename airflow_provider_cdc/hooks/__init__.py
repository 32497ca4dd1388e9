"""From an Airflow connection to the database behind it."""

from __future__ import annotations

from airflow_provider_cdc import airflow_version

airflow_version.check()

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook  # noqa: E402

from airflow_provider_cdc.errors import ConfigurationError  # noqa: E402
from airflow_provider_cdc.hooks.base import CdcHook  # noqa: E402
from airflow_provider_cdc.sources.registry import kind_of  # noqa: E402


def open_hook(conn_id: str) -> CdcHook:
    """The hook for the kind of database that the connection's type names.

    :raises ConfigurationError: there is no such connection, or its type is not one that can be copied from.
    """
    where = f"source_conn_id {conn_id!r}"
    try:
        connection_type = BaseHook.get_connection(conn_id).conn_type
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            "there is no such connection",
            where=where,
            hint="create it, with the type cdc_mysql or cdc_postgres, or correct source_conn_id",
        ) from error
    kind = kind_of(connection_type, where)
    hook: CdcHook = kind.load(kind.hook, where)(conn_id)
    return hook
