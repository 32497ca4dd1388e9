"""Opens the database behind an Airflow connection."""

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
    """Return the hook for the kind of database that the connection's type names.

    :raises ConfigurationError: the connection does not exist, or its type is not a supported source.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _none(conn_id) from error
    return _hook_for(connection, conn_id)


async def source_in_event_loop(conn_id: str) -> Source:
    """Return the source behind a connection, for a trigger, as ``open_hook(conn_id).get_conn()`` does.

    Opens no session.

    :raises SourceUnavailable: Airflow does not return the connection.
    :raises ConfigurationError: the same errors as `open_hook` and the hook's ``settings``.
    """
    try:
        connection = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        # Airflow also raises this error if its own server does not answer. The connection existed when the task was
        # deferred.
        missing = _none(conn_id)
        raise SourceUnavailable(missing.message, where=missing.where, hint=missing.hint) from error
    # Import the driver in another thread, because the import is slow and must not block other triggers. The rest must
    # stay in this thread: reading the connection's extra uses Airflow's streams to its supervisor, which belong to this
    # event loop.
    hook = await asyncio.to_thread(_hook_for, connection, conn_id)
    return open_source(hook.settings_of(connection))


def _hook_for(connection: Any, conn_id: str) -> CdcHook:
    where = _where(conn_id)
    kind = kind_of(connection.conn_type, where)
    hook: CdcHook = kind.load(kind.hook, where)(conn_id)
    return hook


def _none(conn_id: str) -> ConfigurationError:
    return ConfigurationError(
        "the connection does not exist",
        where=_where(conn_id),
        hint="create the connection with the type cdc_mysql or cdc_postgres, or correct source_conn_id",
    )


def _where(conn_id: str) -> str:
    return f"source_conn_id {conn_id!r}"
