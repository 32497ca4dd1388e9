"""From an Airflow connection to the database behind it."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_cdc import airflow_version

airflow_version.check()

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook  # noqa: E402

from airflow_provider_cdc.errors import ConfigurationError, SourceUnavailable  # noqa: E402
from airflow_provider_cdc.hooks.base import CdcHook  # noqa: E402
from airflow_provider_cdc.sources.api.registry import kind_of, open_source  # noqa: E402
from airflow_provider_cdc.sources.api.source import Source  # noqa: E402


def open_hook(conn_id: str) -> CdcHook:
    """The hook for the kind of database that the connection's type names.

    :raises ConfigurationError: there is no such connection, or its type is not one that can be copied from.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _none(conn_id) from error
    return _hook_for(connection, conn_id)


async def source_in_event_loop(conn_id: str) -> Source:
    """The source behind a connection, for a trigger: ``open_hook(conn_id).get_conn()``. Opens no session.

    :raises SourceUnavailable: Airflow does not give the connection.
    :raises ConfigurationError: as `open_hook` does, and the hook's ``settings``.
    """
    try:
        connection = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        # Airflow says so, too, if its own server does not answer. The task that made the trigger had the connection.
        missing = _none(conn_id)
        raise SourceUnavailable(missing.message, where=missing.where, hint=missing.hint) from error
    # Importing a driver takes a while, in which other triggers should run. The rest must stay in this thread: reading
    # the connection's extra makes Airflow talk to its supervisor, over streams that belong to this event loop.
    hook = await asyncio.to_thread(_hook_for, connection, conn_id)
    return open_source(hook.settings_of(connection))


def _hook_for(connection: Any, conn_id: str) -> CdcHook:
    where = _where(conn_id)
    kind = kind_of(connection.conn_type, where)
    hook: CdcHook = kind.load(kind.hook, where)(conn_id)
    return hook


def _none(conn_id: str) -> ConfigurationError:
    return ConfigurationError(
        "there is no such connection",
        where=_where(conn_id),
        hint="create it, with the type cdc_mysql or cdc_postgres, or correct source_conn_id",
    )


def _where(conn_id: str) -> str:
    return f"source_conn_id {conn_id!r}"
