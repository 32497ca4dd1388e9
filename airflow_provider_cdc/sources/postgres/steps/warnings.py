"""Logs warnings during preflight, about settings that make a run costly, versions with defects, and unused slots."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote
from airflow_provider_cdc.sources.postgres.slots import run_publication, slots, transaction_waits

BYTES_PER_SECOND = 20_000_000
_LOG_PER_TABLE_BYTE = 0.1
_LONG_SECONDS = 60
_LEAST_SECONDS = 600
"""The estimates: `BYTES_PER_SECOND` is how many bytes a run reads per second. `_LOG_PER_TABLE_BYTE` is how many bytes
of log the server writes during the reads for each byte of the tables. `_LEAST_SECONDS` is the minimum time, in seconds,
that the rest of a run takes."""

_RIGHT_SINCE: Mapping[int, int] = {15: 8, 16: 4}
"""The first minor version without a certain defect, by major version. With the defect, a slot that is created while
other slots are read may miss open transactions."""

_RISKS: Mapping[tuple[str, str], str] = {
    ("fsync", "off"): "a crash of the machine may undo or damage committed changes",
    ("full_page_writes", "off"): "a crash of the machine may damage pages",
    ("synchronous_commit", "off"): "commits are visible before they are on disk, so each part that is read waits until "
    "they are (up to three times wal_writer_delay)",
}

_log = logging.getLogger(__name__)


def advise(connection: Connection, tables: Sequence[Table]) -> None:
    """Log every warning that applies."""
    _warn_of_version(connection.info.server_version)
    _warn_of_crashes(connection)
    _warn_of_limits(connection, tables)
    _warn_of_writers(connection)
    _warn_of_left(connection)


def _warn_of_version(version: int) -> None:
    major, minor = divmod(version, 10_000)
    if minor < _RIGHT_SINCE.get(major, 0):
        _log.warning(
            "In PostgreSQL %d.%d, a new replication slot may miss open transactions if other slots are read at that "
            "time. This provider creates its slots in a way that avoids the error, but other clients may not: "
            "upgrade to %d.%d or later",
            major,
            minor,
            major,
            _RIGHT_SINCE[major],
        )


def _warn_of_crashes(connection: Connection) -> None:
    """Warn of settings under which a crash loses data. In any case, parts that were read before a restart are read
    again."""
    # Read the values that apply to other sessions, because this session has its own synchronous_commit.
    rows = query(
        connection,
        "SELECT name, reset_val FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') "
        "ORDER BY name",
    )
    for name, setting in rows:
        if risk := _RISKS.get((name, setting)):
            _log.warning("%s is %s: %s", name, setting, risk)


def _warn_of_limits(connection: Connection, tables: Sequence[Table]) -> None:
    """Warn of limits at which the server invalidates the run's slot. If the slot is invalidated, the run stops. There
    is no other effect."""
    limits = dict(
        query(
            connection,
            "SELECT name, setting::bigint FROM pg_settings "
            "WHERE name IN ('max_slot_wal_keep_size', 'idle_replication_slot_timeout')",
        )
    )
    size = sum(table.bytes for table in tables)
    seconds = size / BYTES_PER_SECOND
    megabytes, idle = limits["max_slot_wal_keep_size"], limits.get("idle_replication_slot_timeout", 0)
    if 0 <= megabytes * 2**20 < size * _LOG_PER_TABLE_BYTE:
        _log.warning(
            "max_slot_wal_keep_size is %d MB. The size of the tables is %.0f MB, and reading them takes about %.0f "
            "s. If the server writes more log than this limit during that time, the server removes log that the run "
            "needs",
            megabytes,
            size / 2**20,
            seconds,
        )
    if 0 < idle < _LEAST_SECONDS + seconds:
        _log.warning(
            "idle_replication_slot_timeout is %d s, but the run's slot is idle for about %.0f s while tables are "
            "read. The server may remove the run's log",
            idle,
            seconds,
        )


def _warn_of_writers(connection: Connection) -> None:
    """Warn of long transactions that write. The creation of a run's slots waits for them, and fails after a time limit.
    If rows are read again, the last slot is created late in the run."""
    if long := transaction_waits.blockers(connection, _LONG_SECONDS):
        _log.warning(
            "The run's slots must wait for all write transactions to end. These write transactions have run for more "
            "than %d s: %s",
            _LONG_SECONDS,
            "; ".join(long),
        )


def _warn_of_left(connection: Connection) -> None:
    """Warn of slots and publications that earlier runs may have left behind.

    Slots and publications of runs in progress are listed, too. So the message contains the command that drops a slot or
    publication only if no run can use it any more.
    """
    for name, wal_kept, status in slots.left_slots(connection):
        drop = f"SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION IF EXISTS {quote(name)};"
        if status == "lost":
            _log.warning("The slot %s has lost its log. No run can use this slot any more: %s", name, drop)
        else:
            _log.warning(
                "The slot %s keeps %.1f MB of log%s. The run of the slot may be in progress: check in Airflow "
                "whether the run has ended. If so, drop the slot (pg_drop_replication_slot) and the publication of "
                "the same name",
                name,
                wal_kept / 1e6,
                _made_for(run_publication.about(connection, name)),
            )
    for name in slots.left_publications(connection):
        _log.warning(
            "The publication %s has no slot%s. No run can use this publication any more: DROP PUBLICATION %s;",
            name,
            _made_for(run_publication.about(connection, name)),
            quote(name),
        )


def _made_for(about: Mapping[str, Any]) -> str:
    if "run_id" not in about:
        return ""
    run = f"run {about.get('dag_run_id') or about.get('run_id')}"
    dag = f" of DAG {about['dag_id']}" if about.get("dag_id") else ""
    return f", and was made for {run}{dag} at {about.get('created')} on {about.get('host')}"
