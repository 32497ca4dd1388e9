"""Opens the database behind an Airflow connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc import airflow_version

airflow_version.check()

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook  # noqa: E402

from airflow_provider_cdc.errors import ConfigurationError, SourceUnavailable  # noqa: E402
from airflow_provider_cdc.hooks.base import CdcHook  # noqa: E402
from airflow_provider_cdc.hooks.identity import identity_in_event_loop  # noqa: E402
from airflow_provider_cdc.sources.api.registry import kind_of, open_source  # noqa: E402
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source  # noqa: E402

if TYPE_CHECKING:
    from airflow_provider_cdc.core.options.run import StepOptions


def open_hook(conn_id: str) -> CdcHook:
    """Return the hook for a connection. The connection's type selects the kind of database.

    :raises ConfigurationError: the connection does not exist, or its type is not a supported source.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _none(conn_id) from error
    return _hook_for(connection, conn_id)


def settings_with_replicas(conn_id: str, options: StepOptions) -> ConnectionSettings:
    """Return the settings of a source whose tables, or whose log, may be read on replicas.

    :param options: the options of a run, which name the connections to the replicas.
    :raises ConfigurationError: for the same reasons as `open_hook` and the hook's ``settings``, for each connection; or
        the connections are of several kinds of sources.
    """
    settings = open_hook(conn_id).settings()
    replicas = [_replica(name, "read_conn_ids", settings) for name in options.read_conn_ids or ()]
    log_server = _replica(options.log.conn_id, "log_conn_id", settings) if options.log.conn_id else None
    wait = options.lock.replica_wait_seconds
    return replace(settings, replicas=tuple(replicas), log_server=log_server, replica_wait_seconds=wait)


def _replica(conn_id: str, option: str, source: ConnectionSettings) -> ConnectionSettings:
    where = f"parameter {option} (Read.{option}), {conn_id!r}"
    try:
        replica = open_hook(conn_id).settings()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error.where}: {error.message}", where=where, hint=error.hint) from error
    if replica.kind != source.kind:
        raise ConfigurationError(
            f"it is a {replica.kind} connection, but the source is {source.kind}",
            where=where,
            hint="name connections to replicas of the source",
        )
    return replica


def open_source_with_replicas(conn_id: str, options: StepOptions) -> Source:
    """Return the source with the settings of `settings_with_replicas`. Opens no session."""
    return open_source(settings_with_replicas(conn_id, options))


async def source_in_event_loop(conn_id: str) -> Source:
    """Return the same source as ``open_hook(conn_id).get_conn()``, for use in a trigger.

    Opens no session.

    :raises SourceUnavailable: Airflow does not find the connection, or Airflow's own server does not answer.
    :raises ConfigurationError: for the same reasons as `open_hook` and the hook's ``settings``.
    """
    try:
        connection = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        # Airflow also raises this error if its own server does not answer. The connection existed when the task was
        # deferred, so that server has probably not answered.
        missing = _none(conn_id)
        raise SourceUnavailable(missing.message, where=missing.where, hint=missing.hint) from error
    # Import the driver in another thread, because the import is slow and must not block other triggers. The other calls
    # must run in this thread. They read the connection's extra through Airflow's streams to its supervisor, and these
    # streams belong to this event loop.
    hook = await asyncio.to_thread(_hook_for, connection, conn_id)
    identity = await identity_in_event_loop(connection.extra_dejson, hook.where)
    return open_source(hook.settings_of(connection, identity))


def _hook_for(connection: Any, conn_id: str) -> CdcHook:
    where = _where(conn_id)
    kind = kind_of(connection.conn_type, where)
    hook: CdcHook = kind.load(kind.hook, where)(conn_id)
    return hook


def _none(conn_id: str) -> ConfigurationError:
    return ConfigurationError(
        "the connection does not exist",
        where=_where(conn_id),
        hint="create the connection with the type cdc_mysql or cdc_postgres, or correct the option `source_conn_id`",
    )


def _where(conn_id: str) -> str:
    return f"source_conn_id {conn_id!r}"
