"""Reads the commit times of the transactions that changed published tables, from the log of a standing slot.

The output plugin is pgoutput, as everywhere in this package. It reports only transactions that changed a table of the
slot's publication or wrote a logical message. Other transactions change no row of a copied table
(docs/design/as-of.md).

The server decodes the changes, too, but returns only the commits.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import LogGone, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote, session, slot_errors, value
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import Join, Mark, alone, load_to_change, store

PART_BYTES = 256 * 2**20
"""Bytes of log that one call decodes. The server stores the result of a call on its disk until the call returns."""

# A Commit message begins with this byte.
_COMMITS = """
SELECT data FROM pg_logical_slot_get_binary_changes(%s, %s, NULL, 'proto_version', '1', 'publication_names', %s,
    'messages', 'true') WHERE get_byte(data, 0) = ascii('C')
"""
_COMMIT = struct.Struct(">cBQQq")
"""The type of the message, flags, the beginning and the end of the commit record, and the commit time in microseconds
since 2000."""
_YEAR_2000 = 946_684_800_000_000
_EARLIEST, _LATEST = -62_135_510_400_000_000, 253_402_128_000_000_000
"""The times 0001-01-02 and 9999-12-30, in microseconds since 1970. A replication origin may set any commit time, also
infinity."""


@dataclass(frozen=True)
class LogCommit:
    """The commit of a transaction.

    - ``end``: the end of the commit record.
    - ``at``: the commit time in microseconds since 1970. If logical replication applied the transaction, this is the
      time on the server that first committed it.
    """

    end: Lsn
    at: int


class NoFreeSlot(SourceUnavailable):
    """All replication slots of the server are in use, so no slot can be copied."""


def commits_since(settings: ConnectionSettings, slot: str, start: Lsn) -> Generator[LogCommit]:
    """Yield the commits whose records begin at ``start`` or later, in log order, up to the end of the flushed log.

    :param slot: a slot that has the log since ``start``. Its publication has the same name. The slot is not changed.
    :raises LogGone: the slot is gone.
    :raises SourceUnavailable: the slot no longer has the log since ``start``.
    :raises NoFreeSlot: the server has no slot for a copy of ``slot``.
    """
    with copied_slot(settings, slot, start) as (connection, copy):
        at, end = start, Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        while at < end:
            # Each call decodes again all transactions that were open at the position where the call begins.
            part = max(PART_BYTES, _decoded_again(connection, copy))
            upto = min(end, Lsn(int(at) + part))
            for (message,) in query(connection, _COMMITS, (copy, str(upto), quote(slot))):
                _, _, _, ended, when = _COMMIT.unpack(message)
                yield LogCommit(Lsn(ended), min(max(when + _YEAR_2000, _EARLIEST), _LATEST))
            before, at = at, _confirmed(connection, copy)
            if at <= before:
                return


@contextmanager
def copied_slot(settings: ConnectionSettings, slot: str, at: Lsn) -> Iterator[tuple[Connection, str]]:
    """Yield a session, and the name of a temporary copy of ``slot`` at the position ``at``. The copy ends with the
    session.

    :raises LogGone, SourceUnavailable, NoFreeSlot: see `commits_since`.
    """
    copy = f"{slots.PREFIX}times_{uuid4().hex[:12]}"
    with session(settings) as connection, slot_errors(f"replication slot {slot}"):
        try:
            query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true)", (slot, copy))
        except psycopg.errors.ConfigurationLimitExceeded:
            raise NoFreeSlot(
                "all replication slots are in use, and one more is needed to find out when transactions committed",
                where=f"replication slot {slot}",
                hint="drop unused slots, or raise max_replication_slots; then retry the task",
            ) from None
        try:
            advance(connection, copy, at)
        except LogGone as error:
            # When the caller checked the slot, the slot still had the log since this position. So another run has
            # advanced the slot meanwhile.
            raise SourceUnavailable(
                f"another run advanced the slot in the meantime: {error.message}",
                where=f"replication slot {slot}",
                hint="retry the task",
            ) from error
        yield connection, copy


def advance(connection: Connection, slot: str, to: Lsn) -> None:
    """Advance a slot to ``to``. The slot then returns the transactions whose commit records begin at ``to`` or later.

    :raises LogGone: the slot is already past ``to``, the log does not reach ``to``, or the log is gone.
    """
    confirmed = _confirmed(connection, slot)
    if confirmed < to:
        with slot_errors(f"replication slot {slot}"):
            sql = "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, %s)"
            ((at,),) = query(connection, sql, (slot, str(to)))
        confirmed = Lsn.parse(at)
    if confirmed != to:
        raise LogGone(
            f"the slot is at the position {confirmed}, but {to} was requested",
            where=f"replication slot {slot}",
            hint="request a later time or position",
        )


def _confirmed(connection: Connection, slot: str) -> Lsn:
    slot_state = slots.state(connection, slot)
    if slot_state is None or slot_state.confirmed is None:
        raise LogGone("the slot is gone", where=f"replication slot {slot}", hint="retry the task")
    return slot_state.confirmed


def _decoded_again(connection: Connection, slot: str) -> int:
    return int(
        value(
            connection,
            "(SELECT confirmed_flush_lsn - restart_lsn FROM pg_replication_slots WHERE slot_name = %s)::int8",
            (slot,),
        )
    )


# Finds the position of a time. This position ends the longest prefix of the log in which no commit is later than the
# time.
#
# Commit times do not always increase along the log. So the first commit with a later time ends the prefix. The prefix
# begins where the standing slot was created. A recorded mark summarises the beginning of the log that earlier calls
# have already read.
#
# The log has no DDL. Tables may have joined the standing slot at a position after the end of the prefix, without a
# commit in between. In that case, a time after the join resolves to the position of the join. This position includes
# all changes to the definitions of tables that were made before the join.


@dataclass(frozen=True)
class Prefix:
    """The longest prefix of the log without a commit after the requested time. The prefix ends at ``position``.

    ``mark`` is the end of the last commit in the prefix. Depending on the requested time, ``position`` may be later
    than the mark. ``final``: a commit with a later time follows, so the prefix cannot grow any more.
    """

    position: Lsn
    mark: Mark
    final: bool


def prefix_at(
    settings: ConnectionSettings,
    slot: str,
    marks: Sequence[Mark],
    joins: Sequence[Join],
    when: int,
    most: Lsn | None = None,
    clock: int | None = None,
) -> Prefix | None:
    """Return the longest prefix of the log without a commit after ``when``. None: the prefix ends before the first
    mark.

    :param marks: the recorded marks. The slot still has the log since each of them.
    :param when: the time in microseconds since 1970.
    :param most: a limit for the end of the prefix, independent of the time.
    :param clock: the server's clock, in microseconds since 1970. If it is given, the times of commits and marks after
        ``clock`` are wrong: the clock was set back, or a replication origin set the time. Such a commit was made before
        the commits that follow it in the log. So it belongs to the prefix if one of these does. None: all times count
        as they are.
    :raises LogGone: the slot is gone.
    :raises SourceUnavailable: the slot was advanced meanwhile.
    """
    earlier = [mark for mark in marks if mark.latest <= when and (most is None or Lsn.parse(mark.position) <= most)]
    if not earlier and clock is not None and marks and marks[0].latest > clock:
        # Without a commit that has a plausible time, the mark keeps the time 0.
        earlier = [Mark(marks[0].position, 0)]
    if not earlier:
        return None
    position, latest = Lsn.parse(earlier[-1].position), earlier[-1].latest
    until: Lsn | None = None
    with closing(commits_since(settings, slot, position)) as commits:
        for commit in commits:
            if clock is not None and commit.at > clock and (most is None or commit.end <= most):
                continue
            if commit.at > when or (most is not None and commit.end > most):
                until = commit.end
                break
            position, latest = commit.end, max(latest, commit.at)
    # The end of a commit is the end of a log record, and so is the position of a join. So if the record of a commit
    # ends after a join, this record also begins at or after the join.
    points = [Lsn.parse(join.position) for join in joins if join.at <= when]
    end = max([position, *(point for point in points if until is None or point < until)])
    return Prefix(end, Mark(str(position), latest), until is not None)


def remember(settings: ConnectionSettings, name: str, beginning: str, mark: Mark, seconds: float) -> None:
    """Record a mark, so that later calls do not need to read the log before the mark again."""
    with session(settings) as connection:
        alone(connection, name, seconds)
        record = load_to_change(settings, connection, name)
        if record is not None and record.beginning == beginning and mark not in record.marks:
            store(connection, name, record.with_mark(mark))
