"""What the server keeps for a run: a slot, which keeps the log, and the publication of the same name.

The slot's consistent point is the initial position: the log gives exactly the transactions whose commit record begins
at or after it. The slot is only peeked at, never advanced, so it stays at that point until the run releases it.

Several tries may fix a run's position at once, and one of them ends up in the manifest. So each makes a slot and a
publication of its own and drops no other's, unless its own position is the one that counts. All of them are found by
the id of the run alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.errors import CdcError, ConfigurationError, SourceUnavailable, TransientError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, query, quote, session, value
from airflow_provider_cdc.sources.postgres.slots.transaction_waits import consistent_point

PREFIX = "cdc_"
STANDING = f"{PREFIX}standing_"
"""What the names of standing slots, and of their publications, begin with; those belong to no run."""
PLUGIN = "pgoutput"
DROP_SECONDS = 15

_LONGEST_NAME = 63
_TOKEN_DIGITS = 8
_FORWARD = "forward_slots"
STANDING_PUBLICATION = "standing_publication"
_POLL_SECONDS = 0.02
_ENDING_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots. ``safe_bytes`` may still be written before the slot is lost; None: no limit.
    ``invalidated``: why it was, as servers since 17 tell.
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
    def limit(self) -> str:
        """The setting by which the server gave a lost slot up."""
        return "idle_replication_slot_timeout" if self.invalidated == "idle_timeout" else "max_slot_wal_keep_size"


def name_of(run_id: str) -> str:
    """What the names of all slots and publications of a run begin with: ``cdc_`` and the run's id, in letters that a
    slot's name may have. Short enough for a token behind it."""
    name = PREFIX + re.sub("[^a-z0-9_]", "_", run_id.lower())
    longest = _LONGEST_NAME - 1 - _TOKEN_DIGITS
    if len(name) > longest:
        name = f"{name[: longest - 9]}_{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"
    return name


def name_of_try(run_id: str) -> str:
    """The name of the slot and the publication of one try to fix the run's position: another one in each call."""
    return f"{name_of(run_id)}_{uuid.uuid4().hex[:_TOKEN_DIGITS]}"


def without_token(name: str) -> str:
    """`name_of` the run whose try made the slot ``name`` (`name_of_try`)."""
    return re.sub(f"_[0-9a-f]{{{_TOKEN_DIGITS}}}$", "", name)


def names_of_run(connection: Connection, run_id: str) -> list[str]:
    """The names of all slots and publications in this database that tries of a run made."""
    rows = query(
        connection,
        "SELECT slot_name::text FROM pg_replication_slots "
        "WHERE slot_name ~ %(names)s AND database = current_database() AND NOT temporary "
        "UNION SELECT pubname::text FROM pg_publication WHERE pubname ~ %(names)s ORDER BY 1",
        # Without a token: made by an older version of this provider.
        {"names": f"^{name_of(run_id)}(_[0-9a-f]{{{_TOKEN_DIGITS}}})?$"},
    )
    return [name for (name,) in rows]


@contextmanager
def new_slot(settings: ConnectionSettings, name: str, seconds: float) -> Iterator[tuple[Lsn, str]]:
    """Create a run's slot, and give its consistent point, and the name of a snapshot that shows what held there: other
    sessions can take it over as long as the context is open. The slot stays.

    The server waits for every transaction that has written and still runs, the prepared ones included.

    :raises LockNotGranted: one of them ran for longer than ``seconds``; the message lists them.
    """
    with session(settings, replication=True) as connection:
        # With SNAPSHOT 'nothing', servers before 15.8 and 16.4 may take over what another slot left of its own
        # beginning, and then lack what transactions wrote that were open: `warn_of_version`.
        sql = f"CREATE_REPLICATION_SLOT {quote(name)} LOGICAL {PLUGIN} (SNAPSHOT 'export')"
        yield consistent_point(settings, connection, sql, seconds)


def create_slot(settings: ConnectionSettings, name: str, seconds: float) -> Lsn:
    """`new_slot`'s point alone."""
    with new_slot(settings, name, seconds) as (point, _):
        return point


def room(connection: Connection, setting: str, needed: int) -> tuple[int, int]:
    """What ``max_replication_slots`` or ``max_wal_senders`` allows, and how many there are.

    The process of a session goes on for a moment after its connection, and holds what it had. So if there is no room
    for as many as are needed, and would be without such, the answer is that of a moment later.
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
    # Who may not know what others do sees no state.
    "max_wal_senders": ("pg_stat_replication", "state IS DISTINCT FROM 'streaming'"),
}


def state(connection: Connection, name: str) -> SlotState | None:
    """The slot of that name in this database; None if there is none."""
    rows = query(
        connection,
        "SELECT slot_name, wal_status, confirmed_flush_lsn::text, safe_wal_size, "
        "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::int8, to_jsonb(s) ->> 'invalidation_reason' "
        "FROM pg_replication_slots s WHERE slot_name = %s AND database = current_database()",
        (name,),
    )
    if not rows:
        return None
    ((found, status, confirmed, safe, wal_kept, invalidated),) = rows
    return SlotState(
        found, status or "", Lsn.parse(confirmed) if confirmed else None, safe, wal_kept, invalidated or ""
    )


def warn_if_short(slot: SlotState) -> None:
    """Warn if the server is about to throw away the log that the slot keeps."""
    if slot.wal_status == "unreserved" or (slot.safe_bytes is not None and slot.safe_bytes < (slot.kept_bytes or 0)):
        _log.warning(
            "The slot %s keeps %s bytes of log and may keep %s more before the server throws it away (wal_status %s): "
            "raise max_slot_wal_keep_size",
            slot.name,
            slot.kept_bytes,
            slot.safe_bytes,
            slot.wal_status,
        )


def begins(connection: Connection, name: str) -> bool:
    """Whether the log is there where a slot begins. What the server says of a slot (``wal_status``) counts only what it
    threw away itself, and not what pg_resetwal, a restored disk or somebody's hand did."""
    copy = f"{PREFIX}look_{uuid.uuid4().hex[:12]}"
    try:
        query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true)", (name, copy))
    except psycopg.errors.ConfigurationLimitExceeded:
        # Whoever needs more room says so.
        return True
    peek = "pg_logical_slot_peek_binary_changes(%s, '0/1', 1, 'proto_version', '1', 'publication_names', %s)"
    try:
        # It stops behind the first record.
        query(connection, f"SELECT FROM {peek}", (copy, quote(name)))
    except psycopg.errors.UndefinedFile:
        # With an error, temporary slots end.
        return False
    query(connection, "SELECT pg_drop_replication_slot(%s)", (copy,))
    return True


def left_slots(connection: Connection) -> list[tuple[str, int, str]]:
    """Our slots but the standing ones, of runs in progress and of others: how many bytes of log each one keeps, and its
    ``wal_status``."""
    return [
        (name, wal_kept or 0, status or "")
        for name, wal_kept, status in query(
            connection,
            "SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::int8, wal_status "
            "FROM pg_replication_slots WHERE starts_with(slot_name::text, %s) AND plugin = %s AND NOT temporary "
            "AND NOT starts_with(slot_name::text, %s) AND database = current_database() ORDER BY slot_name",
            (PREFIX, PLUGIN, STANDING),
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


def release(settings: ConnectionSettings, run_id: str) -> None:
    """Drop all that the server keeps for a run, whichever try had it made.

    :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
    :raises TransientError: a session that uses a slot did not end.
    """
    with session(settings) as connection:
        _require_primary(settings, connection)
        failures = []
        for name in names_of_run(connection, run_id):
            # One that cannot be dropped must not keep the others: each of them holds the server's log.
            try:
                _drop(connection, name, name)
            except (CdcError, psycopg.Error) as error:
                failures.append(error)
        if failures:
            raise failures[0]


def identity_of_try(slot: str, publication: str = "") -> dict[str, str]:
    """What a manifest says of what a try made: its slot, and its publication.

    :param publication: one that was there before, and is used instead; empty: the one of the slot's name.
    """
    return {"slot": slot, "publication": publication or slot, "publication_made": "" if publication else "yes"}


def with_forward_slots(identity: Mapping[str, str], made: Mapping[Lsn, str], standing: str) -> dict[str, str]:
    """The identity of a try that also made these slots, by the positions of the copies that are rolled forward.

    :param standing: the publication that tells of the tables since then.
    """
    return {
        **identity,
        _FORWARD: json.dumps({str(start): slot for start, slot in made.items()}),
        STANDING_PUBLICATION: standing,
    }


def forward_slots(identity: Mapping[str, str]) -> dict[Lsn, str]:
    """The slots that have the log since the copies that a run rolls forward, by the positions of these."""
    return {Lsn.parse(start): slot for start, slot in json.loads(identity.get(_FORWARD, "{}")).items()}


def discard(settings: ConnectionSettings, identity: Mapping[str, str]) -> None:
    """Drop what one try made, which `identity_of_try` names, but not a publication that was there before it.

    :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
    :raises TransientError: a session that uses the slot did not end.
    """
    for name in forward_slots(identity).values():
        drop(settings, name)
    drop(settings, identity["slot"], identity["publication"] if identity["publication_made"] else "")


def drop(settings: ConnectionSettings, slot: str, publication: str = "") -> None:
    """Drop a slot and a publication. No error if they are not there.

    :raises TransientError: a session that uses the slot did not end.
    :raises SourceUnavailable: a standby answers, where there is nothing to drop.
    """
    with session(settings) as connection:
        _require_primary(settings, connection)
        _drop(connection, slot, publication)


def _require_primary(settings: ConnectionSettings, connection: Connection) -> None:
    if value(connection, "pg_is_in_recovery()"):
        raise SourceUnavailable(
            "a standby answers", where=settings.address, hint="point the connection to the primary alone"
        )


def _drop(connection: Connection, slot: str, publication: str) -> None:
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
        drop = f"DROP PUBLICATION IF EXISTS {quote(publication)}"
        try:
            execute(connection, drop)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"the publication is left, without its slot: {error.where}: {error.message}",
                where=f"publication {publication}",
                hint=f"{drop}, as a user for whom the event trigger raises nothing; for later runs: {error.hint}",
            ) from error


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
