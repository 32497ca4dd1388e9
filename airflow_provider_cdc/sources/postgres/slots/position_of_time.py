"""Finds the position of a time. This position ends the longest prefix of the log in which no commit is later than the
time.

Commit times do not always increase along the log. So the first commit with a later time ends the prefix. The prefix
begins where the standing slot was created. A recorded mark summarises the beginning of the log that earlier calls have
already read.

The log has no DDL. Tables may have joined the standing slot at a position after the end of the prefix, without a commit
in between. In that case, a time after the join resolves to the position of the join. This position includes all changes
to the definitions of tables that were made before the join.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from airflow_provider_cdc.sources.postgres.slots.standing_record import Join, Mark, alone, load, store


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
        record = load(connection, name)
        if record is not None and record.beginning == beginning and mark not in record.marks:
            store(connection, name, record.with_mark(mark))
