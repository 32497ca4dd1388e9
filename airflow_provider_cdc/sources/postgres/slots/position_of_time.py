"""The position of a time: the end of the longest prefix of the log in which every commit is at or before that time.

The first later commit ends the prefix, because commit times need not grow along the log. So the whole log since the
standing slot was created counts. Recorded marks summarise the part that earlier calls have already read.

The log has no DDL. If nothing else was committed between the end of a prefix and the position at which tables joined
the standing slot, a time after that position resolves to that position. This position includes all changes of tables
that were made before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from airflow_provider_cdc.sources.postgres.slots.standing_record import Join, Mark, alone, load, store


@dataclass(frozen=True)
class Prefix:
    """The longest prefix of the log without a later commit. The prefix ends at ``position``.

    ``mark`` is the end of its last commit. ``position`` may be later than the mark, depending on the requested time.
    ``final``: a later commit follows, so the prefix cannot grow any more.
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
) -> Prefix | None:
    """Return the prefix of a time; None if it ends before the first mark.

    :param marks: the marks since which the slot still has the log.
    :param when: the time in microseconds since 1970.
    :param most: a position beyond which the prefix must not go, whatever the time.
    :raises LogGone: the slot is gone.
    :raises SourceUnavailable: the slot was advanced meanwhile.
    :raises ConfigurationError: the server cannot report when transactions committed.
    """
    earlier = [mark for mark in marks if mark.latest <= when and (most is None or Lsn.parse(mark.position) <= most)]
    if not earlier:
        return None
    position, latest = Lsn.parse(earlier[-1].position), earlier[-1].latest
    until: Lsn | None = None
    with closing(commits_since(settings, slot, position)) as commits:
        for commit in commits:
            if commit.at > when or (most is not None and commit.end > most):
                until = commit.end
                break
            position, latest = commit.end, max(latest, commit.at)
    # A later commit that ends after a join also begins after it, because both positions are ends of records.
    points = [Lsn.parse(join.position) for join in joins if join.at <= when]
    end = max([position, *(point for point in points if until is None or point < until)])
    return Prefix(end, Mark(str(position), latest), until is not None)


def remember(settings: ConnectionSettings, name: str, beginning: str, mark: Mark, seconds: float) -> None:
    """Record a mark, so that later calls need not read the log before it again."""
    with session(settings) as connection:
        alone(connection, name, seconds)
        record = load(connection, name)
        if record is not None and record.beginning == beginning and mark not in record.marks:
            store(connection, name, record.with_mark(mark))
