"""Creates, finds and drops the replication slot of a run, and the publication of the same name. The slot keeps the log.

The slot's consistent point is the initial position. The slot returns exactly the transactions whose commit record
begins at or after this point. The run reads the slot without advancing it. So the slot stays at this point until the
run releases the slot.

Several tries of a task may choose a position for the run at the same time, but the manifest records the position of
only one try. So each try creates its own slot and publication. A try drops the slots and publications of other tries
only if the manifest has the position of this try. The run id is enough to find the slots and publications of all tries.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import CdcError, ConfigurationError, SourceUnavailable, TransientError
from airflow_provider_cdc.sources.api.source import PUBLICATION, SLOT, ConnectionSettings, KeptObject
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.server import decodes_on_demand
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, query, quote, session, value
from airflow_provider_cdc.sources.postgres.slots.publications import about
from airflow_provider_cdc.sources.postgres.slots.waits import consistent_point

PREFIX = "cdc_"
STANDING = f"{PREFIX}standing_"
"""Prefix of the names of standing slots and of their publications. These names belong to no run."""
PLUGIN = "pgoutput"
DROP_SECONDS = 15

LOG_END = """CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"""
"""The end of the log that a server can decode, or will decode in a moment."""
_OF_DATABASE = "(database = current_database() OR database IS NULL AND slot_type = 'physical')"
"""The condition for the slots of a database. If the log of a run is read from a standby, the source has a physical slot
for this run (`session_setup.RunSettings`)."""
_LONGEST_NAME = 63
_TOKEN_DIGITS = 8
_POLL_SECONDS = 0.02
_ENDING_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots.

    ``safe_bytes``: the number of bytes that may still be written before the slot is lost. None: there is no limit.
    ``invalidated``: the reason why the slot was invalidated (reported since PostgreSQL 17).
    """

    name: str
    wal_status: str
    confirmed: Lsn | None
    safe_bytes: int | None
    kept_bytes: int | None
    invalidated: str = ""

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or self.confirmed is None

    @property
    def remedy(self) -> str:
        """What to do so that the server does not invalidate the next slot."""
        return _REMEDIES.get(self.invalidated, "raise max_slot_wal_keep_size")


_REMEDIES = {
    "idle_timeout": "raise idle_replication_slot_timeout",
    # Reasons on a standby.
    "rows_removed": "set hot_standby_feedback = on on the standby, and let it use a slot (primary_slot_name)",
    "wal_level_insufficient": "keep wal_level = logical on the source",
}


def name_of(run_id: str) -> str:
    """Return the prefix of the names of all slots and publications of a run.

    The prefix is ``cdc_`` and the run id, reduced to characters that a slot name may have. The prefix leaves room for
    the token of a try.
    """
    name = PREFIX + re.sub("[^a-z0-9_]", "_", run_id.lower())
    longest = _LONGEST_NAME - 1 - _TOKEN_DIGITS
    if len(name) > longest:
        name = f"{name[: longest - 9]}_{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"
    return name


def name_of_try(run_id: str) -> str:
    """Return a new name for the slot and the publication of one try. Each call returns another name."""
    return f"{name_of(run_id)}_{uuid.uuid4().hex[:_TOKEN_DIGITS]}"


def without_token(name: str) -> str:
    """Remove the token from a slot name that `name_of_try` returned. The result is the name that `name_of` returns for
    the run."""
    return re.sub(f"_[0-9a-f]{{{_TOKEN_DIGITS}}}$", "", name)


def names_of_run(connection: Connection, run_id: str) -> list[str]:
    """Return the names of all slots and publications in this database that the tries of a run created."""
    rows = query(
        connection,
        "SELECT slot_name::text FROM pg_replication_slots "
        f"WHERE slot_name ~ %(names)s AND {_OF_DATABASE} AND NOT temporary "
        "UNION SELECT pubname::text FROM pg_publication WHERE pubname ~ %(names)s ORDER BY 1",
        # Older versions of this provider created names without a token.
        {"names": f"^{name_of(run_id)}(_[0-9a-f]{{{_TOKEN_DIGITS}}})?$"},
    )
    return [name for (name,) in rows]


@contextmanager
def new_slot(
    settings: ConnectionSettings, name: str, seconds: float, *, temporary: bool = False
) -> Iterator[tuple[Lsn, str]]:
    """Create the slot of a run. Yield the slot's consistent point, and the name of a snapshot at this point.

    Other sessions can use the snapshot while the context is open. The slot stays afterwards, unless it is
    ``temporary``.

    To create the slot, the server waits for every running transaction that has written, including prepared
    transactions.

    :raises LockNotGranted: transactions ran for longer than ``seconds``. The message lists these transactions.
    """
    with session(settings, replication=True) as connection:
        # With SNAPSHOT 'nothing', servers before 15.8 and 16.4 may reuse the snapshot of another slot's creation. In
        # that case, the new slot misses changes of open transactions (`steps.preflight`).
        kind = "TEMPORARY " if temporary else ""
        sql = f"CREATE_REPLICATION_SLOT {quote(name)} {kind}LOGICAL {PLUGIN} (SNAPSHOT 'export')"
        yield consistent_point(settings, connection, sql, seconds)


def room(connection: Connection, setting: str, needed: int) -> tuple[int, int]:
    """Return the limit that ``max_replication_slots`` or ``max_wal_senders`` sets, and how many slots or senders are in
    use.

    After a connection has ended, its server process may run for a moment longer, and keeps its slot or WAL sender until
    it ends. If there is too little room only because of such processes, this function checks again a moment later.
    """
    view, may_end = _LIMITED[setting]
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        ((limit, used, ending),) = query(
            connection,
            f"SELECT current_setting('{setting}')::int, count(*), count(*) FILTER (WHERE {may_end}) FROM {view}",
        )
        if not limit - used < needed <= limit - used + ending or time.monotonic() > deadline:
            return limit, used
        time.sleep(_POLL_SECONDS)


_LIMITED = {
    "max_replication_slots": ("pg_replication_slots", "temporary"),
    # The state is NULL if this user may not see the activity of other users.
    "max_wal_senders": ("pg_stat_replication", "state IS DISTINCT FROM 'streaming'"),
}


def state(connection: Connection, name: str) -> SlotState | None:
    """Return the state of the slot ``name`` in this database. None: there is no such slot."""
    rows = query(
        connection,
        "SELECT slot_name, wal_status, confirmed_flush_lsn::text, safe_wal_size, "
        f"pg_wal_lsn_diff({LOG_END}, restart_lsn)::int8, COALESCE(to_jsonb(s) ->> 'invalidation_reason', "
        # PostgreSQL 16 reports only that there was a conflict.
        "CASE to_jsonb(s) ->> 'conflicting' WHEN 'true' THEN 'rows_removed' END) "
        "FROM pg_replication_slots s WHERE slot_name = %s AND database = current_database()",
        (name,),
    )
    if not rows:
        return None
    ((found, status, confirmed, safe, wal_kept, invalidated),) = rows
    return SlotState(
        found, status or "", Lsn.parse(confirmed) if confirmed else None, safe, wal_kept, invalidated or ""
    )


def log_decoding_switch(connection: Connection) -> None:
    """Log what the first and the last logical slot switch on and off, if the server decodes its log on demand."""
    level = value(connection, "current_setting('wal_level')")
    if decodes_on_demand(connection, level):
        _log.info(
            "wal_level is %s, and effective_wal_level is %s: the server logs which rows changed only while it has a "
            "logical replication slot. The run's slot switches this on. When the last logical slot of the server is "
            "dropped, the server switches it off again, and the logical slots of its standbys are invalidated. If "
            "this must not happen, set wal_level = logical",
            level,
            value(connection, "current_setting('effective_wal_level')"),
        )


def warn_if_short(slot: SlotState) -> None:
    """Warn if the server is about to remove the log that the slot keeps."""
    if slot.wal_status == "unreserved" or (slot.safe_bytes is not None and slot.safe_bytes < (slot.kept_bytes or 0)):
        _log.warning(
            "The slot %s keeps %s bytes of log and may keep %s more before the server removes the log (wal_status %s): "
            "raise max_slot_wal_keep_size",
            slot.name,
            slot.kept_bytes,
            slot.safe_bytes,
            slot.wal_status,
        )


def begins(connection: Connection, name: str) -> bool:
    """Return whether the server still has the log at the position where a slot begins.

    The slot's ``wal_status`` shows only whether the server itself removed log. It does not show that log was lost
    because of pg_resetwal, a restored disk, or deleted files.
    """
    copy = f"{PREFIX}look_{uuid.uuid4().hex[:12]}"
    try:
        query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true)", (name, copy))
    except psycopg.errors.ConfigurationLimitExceeded:
        # Other checks report that there is no room for another slot.
        return True
    except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.UndefinedObject):
        # The server has removed the slot's log, or the slot, since the caller looked.
        return False
    peek = "pg_logical_slot_peek_binary_changes(%s, '0/1', 1, 'proto_version', '1', 'publication_names', %s)"
    try:
        # The function stops after the first record.
        query(connection, f"SELECT FROM {peek}", (copy, quote(name)))
    except psycopg.errors.UndefinedFile:
        # The error has already dropped the temporary slot.
        return False
    query(connection, "SELECT pg_drop_replication_slot(%s)", (copy,))
    return True


def left_slots(connection: Connection) -> list[tuple[str, int, str]]:
    """Return the slots of all runs in this database, without the standing slots.

    Each entry has the slot's name, the bytes of log that the slot keeps, and ``wal_status``.
    """
    return [
        (name, wal_kept or 0, status or "")
        for name, wal_kept, status in query(
            connection,
            f"SELECT slot_name, pg_wal_lsn_diff({LOG_END}, restart_lsn)::int8, wal_status "
            "FROM pg_replication_slots WHERE starts_with(slot_name::text, %s) AND plugin = %s AND NOT temporary "
            "AND NOT starts_with(slot_name::text, %s) AND database = current_database() ORDER BY slot_name",
            (PREFIX, PLUGIN, STANDING),
        )
    ]


def left_publications(connection: Connection) -> list[str]:
    """Return the publications of runs that no longer have a slot of the same name."""
    return [
        name
        for (name,) in query(
            connection,
            "SELECT pubname::text FROM pg_publication WHERE starts_with(pubname::text, %s) "
            "AND obj_description(oid, 'pg_publication') LIKE %s AND pubname NOT IN "
            f"(SELECT slot_name FROM pg_replication_slots WHERE {_OF_DATABASE}) ORDER BY pubname",
            (PREFIX, f"%{APPLICATION}%"),
        )
    ]


def release(settings: ConnectionSettings, run_id: str) -> None:
    """Drop all slots and publications of a run, from all of its tries.

    :raises SourceUnavailable: the server cannot be reached; the slots and publications stay.
    :raises TransientError: a session that uses a slot did not end.
    """
    with session(settings) as connection:
        require_primary(settings, connection)
        failures = []
        for name in names_of_run(connection, run_id):
            # A slot that cannot be dropped must not prevent dropping the others, because the server keeps log for each
            # slot.
            try:
                _drop_on_standby(settings, connection, name)
                _drop(connection, name, name)
            except (CdcError, psycopg.Error) as error:
                failures.append(error)
        if failures:
            raise failures[0]


def with_slot(facts: PostgresFacts, slot: str, publication: str = "") -> PostgresFacts:
    """Return ``facts`` with the slot and the publication of one try.

    :param publication: an existing publication that the run uses. Empty: the run uses the publication that has the
        slot's name.
    """
    listed = replace(facts.publication, name=publication or slot)
    return replace(facts, slot=slot, publication=listed, publication_made=not publication)


def superseded(names: Sequence[str]) -> tuple[Facts, ...]:
    """Return the identities of earlier tries of a run, by the names of their slots."""
    return tuple(with_slot(PostgresFacts(), name).recorded() for name in names)


def discard(settings: ConnectionSettings, facts: PostgresFacts) -> None:
    """Drop the slots and the publication that one try created (`with_slot`). A publication that existed before stays.

    :raises SourceUnavailable: the server cannot be reached; the slots and the publication stay.
    :raises TransientError: a session that uses the slot did not end.
    """
    for name in facts.forward_slots.values():
        drop(settings, name)
    drop(settings, facts.slot, facts.publication.name if facts.publication_made else "")


def drop(settings: ConnectionSettings, slot: str, publication: str = "", *, failed: bool = False) -> None:
    """Drop a slot and a publication. If they do not exist, do nothing.

    :param failed: this try failed, so its slot may not exist.
    :raises TransientError: a session that uses the slot did not end.
    :raises SourceUnavailable: a standby answered. A standby has nothing to drop.
    """
    with session(settings) as connection:
        require_primary(settings, connection)
        if slot:
            _drop_on_standby(settings, connection, slot, failed=failed)
        _drop(connection, slot, publication)


def drop_after_error(settings: ConnectionSettings, slot: str, publication: str = "") -> None:
    """Drop a slot and a publication while another error is handled: no later run would find them. If they cannot be
    dropped, this is only logged, so that the first error is raised."""
    try:
        drop(settings, slot, publication, failed=True)
    except CdcError as also:
        _log.warning("The slot %s may be left on the server: %s", slot, also)


def require_primary(settings: ConnectionSettings, connection: Connection) -> None:
    if value(connection, "pg_is_in_recovery()"):
        raise SourceUnavailable(
            "a standby answers", where=settings.address, hint="point the connection at the primary only"
        )


def _drop_on_standby(settings: ConnectionSettings, connection: Connection, name: str, *, failed: bool = False) -> None:
    """Drop the slot of a run on the standby from which its log is read. What is on the source stays until then, so that
    the slot can be found.

    :raises ConfigurationError: the slot is on a standby, and the settings do not name it.
    """
    if settings.log_server is not None:
        with session(settings.log_server) as standby:
            if not failed:
                _warn_if_elsewhere(settings.log_server, connection, standby, name)
            _drop(standby, name, "")
    elif why := _on_standby(connection, name):
        raise ConfigurationError(why, where=f"replication slot {name}", hint=_DROP_THERE)


_DROP_THERE = (
    "clean up with the connection of `Read.log_conn_id`, too; or drop the slot there (pg_drop_replication_slot), and "
    "then the slot of this name and the publication on the source"
)


def _warn_if_elsewhere(settings: ConnectionSettings, connection: Connection, standby: Connection, name: str) -> None:
    """Warn if the slot of a run may be on another standby. What is on the source no longer shows it afterwards."""
    if not value(standby, _EXISTS, (name,)) and _on_standby(connection, name):
        _log.warning(
            "The standby %s does not have the slot %s. If `Read.log_conn_id` named another standby when the run began, "
            "and the position was fixed, the slot is still there and keeps log: SELECT pg_drop_replication_slot('%s')",
            settings.address,
            name,
            name,
        )


_EXISTS = "EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s)"


def _on_standby(connection: Connection, name: str) -> str:
    """Return why a slot of the source cannot be dropped alone. Empty: it can."""
    physical = "EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s AND slot_type = 'physical')"
    return "the run's slot is on a standby (`Read.log_conn_id`)" if value(connection, physical, (name,)) else ""


def _drop(connection: Connection, slot: str, publication: str) -> None:
    deadline = time.monotonic() + DROP_SECONDS
    while slot and _drop_slot(connection, slot) is not None:
        if time.monotonic() > deadline:
            raise TransientError(
                "a session that uses the slot has not ended",
                where=f"replication slot {slot}",
                hint=f"end that session, then run SELECT pg_drop_replication_slot('{slot}')",
            )
        time.sleep(_POLL_SECONDS)
    if publication:
        drop = f"DROP PUBLICATION IF EXISTS {quote(publication)}"
        try:
            execute(connection, drop)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"the slot is gone, but its publication could not be dropped: {error.where}: {error.message}",
                where=f"publication {publication}",
                hint=f"run {drop} as a user for whom the event trigger raises no error. To avoid this error in later "
                f"runs: {error.hint}",
            ) from error


def _drop_slot(connection: Connection, name: str) -> int | None:
    """Drop the slot, or terminate the session that uses it. Return the process id of the terminated session. None: the
    slot is gone."""
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


# Lists the replication slots and publications that runs created in a database, and drops single ones.
#
# Each is dropped by its name. A run that starts again creates others with new names, so these are not affected. A slot
# that a session uses is never dropped.


def kept_objects(settings: ConnectionSettings, connection: Connection, run_ids: Collection[str]) -> list[KeptObject]:
    """Return the slots and publications of runs in this database, without the standing slots.

    The comment on a publication names its run. A slot belongs to the run of the publication with its name, or else to
    the run among ``run_ids`` whose id gives this name.

    :raises SourceUnavailable: a standby answered.
    """
    require_primary(settings, connection)
    slots = _kept_slots(connection)
    if settings.log_server is not None:
        with session(settings.log_server) as standby:
            slots |= _kept_slots(standby)
    publications = query(
        connection,
        "SELECT pubname::text FROM pg_publication WHERE starts_with(pubname::text, %s) "
        "AND NOT starts_with(pubname::text, %s) AND obj_description(oid, 'pg_publication') LIKE %s ORDER BY 1",
        (PREFIX, STANDING, f"%{APPLICATION}%"),
    )
    comments = {name: about(connection, name) for (name,) in publications}
    owners = {name_of(run_id): run_id for run_id in run_ids}
    for name, comment in comments.items():
        if comment.get("run_id"):
            owners[without_token(name)] = str(comment["run_id"])

    def kept(kind: str, name: str, pid: int = 0, kept_bytes: int = 0) -> KeptObject:
        comment = comments.get(name, {})
        dag_id, dag_run_id, task_id = (str(comment.get(key) or "") for key in ("dag_id", "dag_run_id", "task_id"))
        run_id = owners.get(without_token(name), "")
        return KeptObject(kind, name, run_id, dag_id, dag_run_id, task_id, pid, kept_bytes)

    found = [kept(SLOT, name, pid, size) for name, (pid, size) in sorted(slots.items())]
    return found + [kept(PUBLICATION, name) for name in comments]


def _kept_slots(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the process that uses each slot of a run, or 0, and the bytes of log that the slot keeps."""
    rows = query(
        connection,
        "SELECT slot_name::text, COALESCE(active_pid, 0), "
        f"COALESCE(pg_wal_lsn_diff({LOG_END}, restart_lsn), 0)::int8 FROM pg_replication_slots "
        "WHERE starts_with(slot_name::text, %s) AND NOT starts_with(slot_name::text, %s) "
        f"AND COALESCE(plugin, %s) = %s AND NOT temporary AND {_OF_DATABASE}",
        (PREFIX, STANDING, PLUGIN, PLUGIN),
    )
    return {name: (pid, size) for name, pid, size in rows}


def drop_unused(settings: ConnectionSettings, one: KeptObject) -> str:
    """Drop a slot or a publication. Return why it stays; empty: it no longer exists."""
    try:
        with session(settings) as connection:
            if settings.log_server is None and (why := _on_standby(connection, one.name)):
                return f"{why}: {_DROP_THERE}"
            if settings.log_server is not None and one.kind == SLOT:
                with session(settings.log_server) as standby:
                    _warn_if_elsewhere(settings.log_server, connection, standby, one.name)
                    if why := _drop_leftover(standby, one):
                        return why
            return _drop_leftover(connection, one)
    except CdcError as error:
        return f"it could not be dropped: {error}"


def _drop_leftover(connection: Connection, one: KeptObject) -> str:
    there = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND {_OF_DATABASE}"
    try:
        if one.kind == SLOT:
            if query(connection, there, (one.name,)):
                query(connection, "SELECT pg_drop_replication_slot(%s)", (one.name,))
        elif query(connection, there, (one.name,)):
            return "the slot with the same name still exists"
        else:
            execute(connection, f"DROP PUBLICATION IF EXISTS {quote(one.name)}")
    except psycopg.errors.UndefinedObject:
        # Another session has dropped it.
        return ""
    except psycopg.errors.ObjectInUse:
        return "a session uses it"
    return ""


# Failover slots: slots that standbys synchronize, so that they survive when a standby takes over.


_FAILOVER_SINCE = 170_000
"""The first version of PostgreSQL with failover slots. Only the standing slot is one: the slot of a run does not move,
so standbys may keep only a temporary copy of it, which promotion drops. Without standbys that synchronize slots, a
failover slot costs nothing."""
_IS_FAILOVER = """(SELECT COALESCE((to_jsonb(s) ->> 'failover')::bool, false)
FROM pg_replication_slots s WHERE s.slot_name = %s)"""


def may_fail_over(connection: Connection) -> bool:
    """Return whether the server has failover slots."""
    return connection.info.server_version >= _FAILOVER_SINCE


def allow_failover(settings: ConnectionSettings, connection: Connection, name: str) -> None:
    """Make a slot a failover slot, if the server can and the slot is none. Earlier versions of this provider created
    others."""
    if may_fail_over(connection) and not value(connection, _IS_FAILOVER, (name,)):
        with session(settings, replication=True) as leader:
            query(leader, f"ALTER_REPLICATION_SLOT {quote(name)} (FAILOVER true)")


@contextmanager
def waiting_for_standbys(connection: Connection, name: str, seconds: float) -> Iterator[None]:
    """Limit the time for which the server waits before it advances the slot.

    To advance a failover slot, the server first waits for the standbys of synchronized_standby_slots, without a time
    limit.

    :raises TransientError: the standbys did not respond in time. The slot was not advanced.
    """
    if not value(connection, _IS_FAILOVER, (name,)):
        yield
        return
    query(connection, f"SET statement_timeout = '{max(1, round(seconds))}s'")
    try:
        yield
    except psycopg.errors.QueryCanceled:
        raise TransientError(
            f"the slot is a failover slot, so it waits for standbys. They did not respond in {seconds:.0f} s",
            where=f"replication slot {name}",
            hint="start the standbys whose slots synchronized_standby_slots names, or remove them from that setting; "
            "until then the server keeps the log",
        ) from None
    query(connection, "RESET statement_timeout")
