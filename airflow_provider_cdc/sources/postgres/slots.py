"""What the server keeps for a run: a publication, which says what the log tells, and a slot, which keeps the log.

The slot's consistent point is the initial position: the log gives exactly the transactions whose commit record begins
at or after it. Nothing is ever taken from the slot, only looked at, so that it stands there until the run releases it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from airflow_provider_cdc.core.lsn import Lsn
from airflow_provider_cdc.core.options import LockPolicy
from airflow_provider_cdc.core.table import Table, TableName
from airflow_provider_cdc.errors import CdcError, LockNotGranted, SchemaChanged, SourceUnavailable, TransientError
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.schema import Leaf, leaves
from airflow_provider_cdc.sources.postgres.session import (
    APPLICATION,
    Connection,
    literal,
    mapped_errors,
    query,
    quote,
    session,
    value,
)

PREFIX = "cdc_"
PLUGIN = "pgoutput"
DROP_SECONDS = 15
NAME_SECONDS = 10.0
"""How often it is said what the slot waits for."""

_LONGEST_NAME = 63
_POLL_SECONDS = 0.02
_LOCK_NOT_AVAILABLE = "55P03"
_GENERATED_COLUMNS_SINCE = 180_000
_PUBLISHED_AT_ONCE = 200
"""Each takes a lock until the statement ends, and the server has room for some thousands of locks."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots. ``safe_bytes`` may still be written before the slot is lost; None: no limit."""

    name: str
    wal_status: str
    confirmed: Lsn | None
    safe_bytes: int | None
    kept_bytes: int | None

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or self.confirmed is None


def name_of(run_id: str) -> str:
    """The name of a run's slot and publication: ``cdc_`` and the run's id, in letters that a slot's name may have."""
    name = PREFIX + re.sub("[^a-z0-9_]", "_", run_id.lower())
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 9]}_{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"
    return name


def create_publication(
    connection: Connection, name: str, tables: Sequence[Table], lock: LockPolicy, run_id: str = ""
) -> None:
    """Publish every change of ``tables``: of what holds their rows now, each relation by itself.

    A partition that is made later is not in it. Were it, as a part of its root, then the server would refuse UPDATE and
    DELETE there for as long as it has no replica identity: in the application. All that are in it have their whole old
    rows logged (FULL), which is looked at while nobody can alter them; so nothing is ever refused because of it.

    A comment on the publication says which run it was made for.

    :raises LockNotGranted: a table is being vacuumed, indexed or altered for longer than the policy waits.
    :raises SchemaChanged: a table has another replica identity, or is gone.
    """
    options = ["publish = 'insert, update, delete, truncate'", "publish_via_partition_root = false"]
    if connection.info.server_version >= _GENERATED_COLUMNS_SINCE:
        options.append("publish_generated_columns = stored")
    listed = [(table.name, leaf) for table in tables for leaf in leaves(table)]
    query(connection, f"SET lock_timeout = '{lock.wait_seconds}s'")
    for attempt in range(1, lock.tries + 1):
        try:
            # Two statements, one transaction.
            query(
                connection,
                f"CREATE PUBLICATION {quote(name)} WITH ({', '.join(options)}); "
                f"COMMENT ON PUBLICATION {quote(name)} IS {literal(_comment(run_id))}",
            )
            for start in range(0, len(listed), _PUBLISHED_AT_ONCE):
                _publish(connection, name, listed[start : start + _PUBLISHED_AT_ONCE])
            break
        except psycopg.errors.LockNotAvailable:
            query(connection, f"DROP PUBLICATION IF EXISTS {quote(name)}")
            if attempt == lock.tries:
                raise LockNotGranted(
                    f"no lock to publish the tables in {lock.tries} tries of {lock.wait_seconds} s",
                    where=", ".join(str(table.name) for table in tables),
                    hint="let the DDL, VACUUM or CREATE INDEX CONCURRENTLY on them end (pg_stat_activity), or let more "
                    "tries pass",
                ) from None
            time.sleep(lock.pause_seconds)
    query(connection, "RESET lock_timeout")


def _publish(connection: Connection, name: str, relations: Sequence[tuple[TableName, Leaf]]) -> None:
    """Add relations to a publication, or none of them."""
    with connection.transaction():
        listed = ", ".join(f"ONLY {leaf.sql}" for _, leaf in relations)
        query(connection, f"ALTER PUBLICATION {quote(name)} ADD TABLE {listed}")
        # The locks are held: from here on until they are published they are as they are seen now.
        full = {
            oid
            for (oid,) in query(
                connection,
                "SELECT oid FROM pg_class WHERE oid = ANY(%s::oid[]) AND relreplident = 'f'",
                ([leaf.oid for _, leaf in relations],),
            )
        }
        for table, leaf in relations:
            if leaf.oid not in full:
                raise SchemaChanged(
                    f"the replica identity of {leaf.sql} is not FULL any more",
                    where=str(table),
                    hint=f"ALTER TABLE {leaf.sql} REPLICA IDENTITY FULL, and clear preflight and the tasks after it",
                )


def create_slot(settings: ConnectionSettings, name: str, seconds: float) -> Lsn:
    """Create the run's slot, and return its consistent point.

    The server waits for every transaction that has written and still runs, the prepared ones included.

    :raises LockNotGranted: one of them ran for longer than ``seconds``; the message lists them.
    """
    with session(settings, replication=True) as connection:
        # With SNAPSHOT 'nothing', servers before 15.8 and 16.4 may take over what another slot left of its own
        # beginning, and then lack what transactions wrote that were open: `warn_of_version`.
        sql = f"CREATE_REPLICATION_SLOT {quote(name)} LOGICAL {PLUGIN} (SNAPSHOT 'export')"
        return consistent_point(settings, connection, sql, seconds)


def consistent_point(settings: ConnectionSettings, connection: Connection, sql: str, seconds: float) -> Lsn:
    """Run a CREATE_REPLICATION_SLOT on a replication connection, for no longer than ``seconds``.

    :raises LockNotGranted: it had to wait for longer.
    """
    # A statement_timeout does not count for commands of the replication protocol, and a lock_timeout for each of the
    # transactions that it waits for.
    query(connection, "SET lock_timeout = 0")
    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(settings, connection, seconds, done), daemon=True)
    watching.start()
    try:
        ((_, point, _, _),) = query(connection, sql)
        return Lsn.parse(point)
    except psycopg.errors.QueryCanceled:
        raise _held_up(settings, "the slot's starting point", seconds) from None
    finally:
        done.set()


def settle(settings: ConnectionSettings, connection: Connection, seconds: float) -> None:
    """Wait until every transaction whose commit the log may already hold can be seen.

    A transaction that commits is in the log first and becomes visible afterwards: at once as a rule, but not before its
    standbys answer where the server waits for them. One that lies before the slot's point, and that a read did not see,
    would be in neither. So all that is in progress right after the point was fixed has to end; not what is idle in a
    transaction then or later, because its commit has not begun, and so comes after the point.

    :raises LockNotGranted: some did not end within ``seconds``; the message lists them.
    """
    # A snapshot lists what runs only up to the last transaction that has ended. This one ends, and is the latest.
    query(connection, "SELECT pg_current_xact_id()")
    ((began, committing, waiting),) = query(connection, _BEGAN)
    deadline = time.monotonic() + seconds
    while waiting:
        arguments = {"waiting": waiting, "committing": committing}
        waiting = [xid for (xid,) in query(connection, _UNSETTLED, arguments)]
        if waiting and time.monotonic() > deadline:
            raise _held_up(settings, f"the copy's view of the commits under way ({began})", seconds)
        time.sleep(_POLL_SECONDS if waiting else 0)


# A prepared transaction has no session of its own. Its COMMIT PREPARED has begun only if some session runs one; what
# a session runs may be hidden from this user, cut off, or not be text.
_BEGAN = """
SELECT pg_current_snapshot()::text, ARRAY(
    SELECT concat(pid, ' ', query_start) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (state IS NULL OR state NOT LIKE 'idle%')
        AND (query ~* 'prepared|insufficient privilege' OR backend_type LIKE 'logical replication%worker'
            OR state = 'disabled'
            OR octet_length(query) >= pg_size_bytes(current_setting('track_activity_query_size')) - 8)),
    ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) x)
"""

_UNSETTLED = """
SELECT x FROM unnest(%(waiting)s::text[]) x
LEFT JOIN pg_stat_activity a ON a.backend_xid = x::xid8::xid
LEFT JOIN pg_prepared_xacts p ON p.transaction = x::xid8::xid
WHERE NOT pg_visible_in_snapshot(x::xid8, pg_current_snapshot())
    AND (a.state IS NULL OR a.state NOT LIKE 'idle in transaction%%')
    AND (p.transaction IS NULL OR EXISTS (
        SELECT FROM pg_stat_activity w WHERE concat(w.pid, ' ', w.query_start) = ANY(%(committing)s)
            AND (w.state IS NULL OR w.state NOT LIKE 'idle%%')))
"""


def state(connection: Connection, name: str) -> SlotState | None:
    """The slot of that name in this database; None if there is none."""
    rows = query(
        connection,
        "SELECT slot_name, wal_status, confirmed_flush_lsn::text, safe_wal_size, "
        "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::int8 FROM pg_replication_slots "
        "WHERE slot_name = %s AND database = current_database()",
        (name,),
    )
    if not rows:
        return None
    ((found, status, confirmed, safe, kept),) = rows
    return SlotState(found, status or "", Lsn.parse(confirmed) if confirmed else None, safe, kept)


def warn_if_short(slot: SlotState) -> None:
    """Say so if the server is about to throw away the log that the slot keeps."""
    if slot.wal_status == "unreserved" or (slot.safe_bytes is not None and slot.safe_bytes < (slot.kept_bytes or 0)):
        _log.warning(
            "The slot %s keeps %s bytes of log and may keep %s more before the server throws it away (wal_status %s): "
            "raise max_slot_wal_keep_size",
            slot.name,
            slot.kept_bytes,
            slot.safe_bytes,
            slot.wal_status,
        )


def publication_state(connection: Connection, name: str) -> str:
    """A digest of the publication that any change to it changes, also one that was taken back; empty if there is none.

    The catalog's rows are new versions after each.
    """
    return str(
        value(
            connection,
            "COALESCE((SELECT md5(concat_ws(';', p.oid, p.xmin, "
            "(SELECT string_agg(concat_ws(',', r.oid, r.xmin, r.prrelid), ';' ORDER BY r.oid) "
            "FROM pg_publication_rel r WHERE r.prpubid = p.oid), "
            "(SELECT string_agg(concat_ws(',', n.oid, n.xmin, n.pnnspid), ';' ORDER BY n.oid) "
            "FROM pg_publication_namespace n WHERE n.pnpubid = p.oid))) "
            "FROM pg_publication p WHERE p.pubname = %s), '')",
            (name,),
        )
    )


def left_slots(connection: Connection) -> list[tuple[str, int, str]]:
    """Our slots, of runs in progress and of others: how many bytes of log each one keeps, and its ``wal_status``."""
    return [
        (name, kept or 0, status or "")
        for name, kept, status in query(
            connection,
            "SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::int8, wal_status "
            "FROM pg_replication_slots WHERE starts_with(slot_name::text, %s) AND plugin = %s AND NOT temporary "
            "AND database = current_database() ORDER BY slot_name",
            (PREFIX, PLUGIN),
        )
    ]


def left_publications(connection: Connection) -> list[str]:
    """Our publications whose slot is gone."""
    return [
        name
        for (name,) in query(
            connection,
            "SELECT pubname::text FROM pg_publication WHERE starts_with(pubname::text, %s) "
            "AND obj_description(oid, 'pg_publication') LIKE %s AND pubname NOT IN "
            "(SELECT slot_name FROM pg_replication_slots WHERE database = current_database()) ORDER BY pubname",
            (PREFIX, f"%{APPLICATION}%"),
        )
    ]


def about(connection: Connection, name: str) -> dict[str, Any]:
    """What the comment on our publication says of the run that it was made for; nothing if there is none."""
    rows = query(
        connection, "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", (name,)
    )
    with suppress(ValueError):
        found = json.loads(rows[0][0] or "{}") if rows else {}
        if isinstance(found, dict):
            return found
    return {}


def _comment(run_id: str) -> str:
    """For whoever finds it: whose it is."""
    said = {
        "made_by": APPLICATION,
        "run_id": run_id,
        # Airflow tells every task whose it is.
        "dag_id": os.environ.get("AIRFLOW_CTX_DAG_ID", ""),
        "dag_run_id": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        "host": socket.gethostname(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(said)


def release(settings: ConnectionSettings, run_id: str) -> None:
    """Drop what the server keeps for a run: the names of what it made are those of its id.

    :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
    :raises TransientError: a session that uses the slot did not end.
    """
    drop(settings, name_of(run_id), name_of(run_id))


def discard(settings: ConnectionSettings, identity: Mapping[str, str]) -> None:
    """Drop what was made for the position with this ``identity``, but not a publication that was there before it.

    :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
    :raises TransientError: a session that uses the slot did not end.
    """
    drop(settings, identity["slot"], identity["publication"] if identity["publication_made"] else "")


def drop(settings: ConnectionSettings, slot: str, publication: str = "") -> None:
    """Drop a slot and a publication. No error if they are not there.

    :raises TransientError: a session that uses the slot did not end.
    :raises SourceUnavailable: a standby answers, where there is nothing to drop.
    """
    with session(settings) as connection:
        if value(connection, "pg_is_in_recovery()"):
            raise SourceUnavailable(
                "a standby answers", where=settings.address, hint="point the connection to the primary alone"
            )
        deadline = time.monotonic() + DROP_SECONDS
        while slot and _drop_slot(connection, slot) is not None:
            if time.monotonic() > deadline:
                raise TransientError(
                    "a session that uses the slot does not end",
                    where=f"replication slot {slot}",
                    hint=f"end it, then SELECT pg_drop_replication_slot('{slot}')",
                )
            time.sleep(_POLL_SECONDS)
        if publication:
            query(connection, f"DROP PUBLICATION IF EXISTS {quote(publication)}")


def _drop_slot(connection: Connection, name: str) -> int | None:
    """The pid of the session that is in the way, which is asked to end; None if the slot is gone."""
    rows = query(connection, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (name,))
    if not rows:
        return None
    pid: int = rows[0][0] or 0
    if pid:
        query(connection, "SELECT pg_terminate_backend(%s)", (pid,))
        return pid
    with suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
        query(connection, "SELECT pg_drop_replication_slot(%s)", (name,))
        return None
    return pid


def _held_up(settings: ConnectionSettings, what: str, seconds: float) -> LockNotGranted:
    with session(settings) as connection:
        blockers = _blockers(connection)
    return LockNotGranted(
        f"transactions held up {what} for {seconds:.0f} s: {'; '.join(blockers) or 'they have ended by now'}",
        where=settings.address,
        hint="let them end, or end them (pg_terminate_backend, ROLLBACK PREPARED); the task can be retried",
    )


def _blockers(connection: Connection) -> list[str]:
    running: list[tuple[Any, ...]] = query(
        connection,
        "SELECT pid, usename, COALESCE(state, 'state not shown: GRANT pg_read_all_stats'), wait_event, "
        "date_trunc('second', now() - xact_start)::text FROM pg_stat_activity "
        "WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 20",
    )
    prepared: list[tuple[Any, ...]] = query(
        connection,
        "SELECT gid, owner, date_trunc('second', now() - prepared)::text FROM pg_prepared_xacts "
        "ORDER BY prepared LIMIT 20",
    )
    return [
        f"session {pid} of {user}, {what}{f', waiting for {event}' if event else ''}, for {age}"
        for pid, user, what, event, age in running
    ] + [f"prepared transaction {gid!r} of {owner}, for {age}" for gid, owner, age in prepared]


def _watch(settings: ConnectionSettings, waiting: Connection, seconds: float, done: threading.Event) -> None:
    """Name now and then what a command waits for, and cancel it after ``seconds``, unless it is done before."""
    deadline = time.monotonic() + seconds
    while not done.wait(max(0.0, min(NAME_SECONDS, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            with suppress(psycopg.Error), mapped_errors("cancel"):
                waiting.cancel_safe(timeout=5)
            return
        with suppress(CdcError), session(settings) as connection:
            _log.info(
                "Waiting for transactions that write to end, up to %.0f s more (nobody waits for this): %s",
                deadline - time.monotonic(),
                "; ".join(_blockers(connection)) or "they have ended by now",
            )
