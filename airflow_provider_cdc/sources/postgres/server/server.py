"""The server behind a session: the settings that exactness rests on, and its identity.

Preflight checks the settings before a run; every later step checks the identity: the same history, in which the run's
slot still stands where it was made, and an untouched publication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.copies.history import MARK, Finding, Relation, Trace
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.errors import ExactnessError, LogGone, Problem, SourceReplaced
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.platform import change_setting, platform
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, value
from airflow_provider_cdc.sources.postgres.server.session_variables import REQUIRED
from airflow_provider_cdc.sources.postgres.slots import run_publication, slots

NEXT_XID = "txid_snapshot_xmax(txid_current_snapshot())::text"
"""The number that the server's next transaction gets at least. It only ever grows, whatever is restarted: all that is
below it was in the log before anybody could see that, and a run has its log flushed before its position counts."""


def setting_problems(connection: Connection) -> list[Problem]:
    """What is wrong with the server's settings now."""
    problems = []
    if value(connection, "pg_is_in_recovery()"):
        problems.append(
            Problem(
                "server", "is a standby, which this version does not copy from", "name the primary in the connection"
            )
        )
    level = value(connection, "current_setting('wal_level')")
    if level != "logical":
        problems.append(
            Problem(
                "wal_level",
                f"is {level}: the log does not tell which rows changed",
                change_setting(platform(connection), "wal_level", "logical"),
            )
        )
    problems += [
        Problem(
            name,
            "is on: rows on damaged pages are passed over in silence, or read as whatever is there",
            f"RESET {name} for the server, this database and this user, and have the damage looked at",
        )
        for name, required in REQUIRED.items()
        if value(connection, f"current_setting('{name}')") != required.value
    ]
    encoding = value(connection, "current_setting('server_encoding')")
    if encoding != "UTF8":
        problems.append(
            Problem(
                f"database {value(connection, 'current_database()')}",
                f"its encoding is {encoding}: only text of UTF8 databases is known to read alike from table and log",
                "copy from a database created with ENCODING 'UTF8'",
            )
        )
    return problems


def identity(connection: Connection) -> dict[str, str]:
    """What tells this server from another: JSON for the manifest."""
    system, database, oid, version, timeline, meaning, next_xid = query(
        connection,
        "SELECT s.system_identifier::text, d.datname, d.oid::text, current_setting('server_version'), "
        f"{session_setup.TIMELINE}, current_setting('{session_setup.MEANING}'), {NEXT_XID} "
        "FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()",
    )[0]
    return {
        "system_identifier": system,
        "timeline": session_setup.timeline(timeline),
        "database": database,
        "database_oid": oid,
        "version": version,
        session_setup.MEANING: meaning,
        MARK: next_xid,
    }


def check_identity(connection: Connection, expected: Mapping[str, str], position: Lsn) -> None:
    """Make sure that this is the server of ``expected``, and that what it keeps for the run is as it was made.

    :raises SourceReplaced: another server, or one that was promoted or restored since.
    :raises LogGone: the run's slot is gone, was invalidated, or was read by someone who moved it on.
    :raises ExactnessError: the publication was altered: the log may lack changes.
    """
    if value(connection, "pg_is_in_recovery()"):
        raise SourceReplaced(
            "a standby answers now",
            where="pg_is_in_recovery",
            hint="point the connection to the primary that the run began on, or trigger a new run",
        )
    found = identity(connection)
    for name in session_setup.OF_THE_SERVER:
        if found[name] != expected[name]:
            raise SourceReplaced(
                f"the run began where {name} is {expected[name]}, but a server answers where it is {found[name]}",
                where=name,
                hint="point the connection back to the first server, or trigger a new run on this one",
            )
    _check_slot(connection, expected["slot"], position)
    for start, name in slots.forward_slots(expected).items():
        _check_slot(connection, name, start)
    for kind in ("publication", "standing"):
        _check_publication(connection, expected, kind)


def _check_publication(connection: Connection, expected: Mapping[str, str], kind: str) -> None:
    """
    :param kind: what the names of what ``expected`` says of it begin with.
    """
    if f"{kind}_state" not in expected:
        return
    name = expected[slots.STANDING_PUBLICATION] if kind == "standing" else expected[kind]
    state = run_publication.publication_state(connection, name, expected.get(f"{kind}_relations", ""))
    if state != expected[f"{kind}_state"]:
        raise ExactnessError(
            "the publication was altered since the run began" if state else "the publication was dropped",
            where=f"publication {name}",
            hint="leave it alone during a run, and trigger a new run",
        )


def _check_slot(connection: Connection, name: str, initial: Lsn) -> None:
    where = f"replication slot {name}"
    hint = "trigger a new run, or clear lock_and_record and the tasks after it"
    slot = slots.state(connection, name)
    if slot is None:
        raise LogGone("the slot that kept the log for this run is gone", where=where, hint=hint)
    if slot.lost:
        raise LogGone(
            f"the server threw away the log that the slot kept ({slot.wal_status})",
            where=where,
            hint=f"{hint}; raise {slot.limit} so that the log outlives it",
        )
    if slot.confirmed != initial:
        raise LogGone(
            f"the slot was moved from {initial} to {slot.confirmed}: someone else reads from it",
            where=where,
            hint=f"leave the slots that are called {slots.PREFIX}… alone, and trigger a new run",
        )
    slots.warn_if_short(slot)


def relations(connection: Connection, traces: Sequence[Trace]) -> list[Finding]:
    """`TellsHistory.relations`.

    The log's end, and the number of the next transaction, only ever grow: a server that has not come as far as it was
    when a copy was made was set back. One that has, may have been, too: nothing in it would tell.
    """
    end, next_xid = query(connection, f"SELECT pg_current_wal_insert_lsn()::text, {NEXT_XID}")[0]
    return [_relation(Lsn.parse(end), int(next_xid), trace) for trace in traces]


def _relation(end: Lsn, next_xid: int, trace: Trace) -> Finding:
    start = trace.position
    if not isinstance(start, Lsn):
        return Finding(Relation.UNKNOWN, "the copy does not say what it is exact at")
    if end < start:
        return Finding(Relation.OTHER, f"the server's log reaches to {end} only, and the copy is of {start}")
    if trace.mark.isdecimal() and next_xid < int(trace.mark):
        why = f"the server has counted {next_xid:,} transactions, and {int(trace.mark):,} when the copy was made"
        return Finding(Relation.OTHER, why)
    return Finding(Relation.SAME)
