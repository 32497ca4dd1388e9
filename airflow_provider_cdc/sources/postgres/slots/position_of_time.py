"""The position that a time means: the end of the longest prefix of the log in which no transaction committed later.

The first later commit ends it: commit times need not grow along the log. So all of the log counts that was written
since the standing slot was made; marks on record say what is known of the part that was looked through before.

DDL is in no log. Where nothing else was committed between the end of a prefix and the point at which tables joined the
standing slot, a time after that point means the point: what was altered before it is then part of it.
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
    """The longest prefix without a later commit, which ends at ``position``.

    ``mark`` is where its last commit ends: what lies between them depends on the time that was asked for. ``final``: a
    later commit follows, so that it stays the longest.
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
    """The prefix that a time means; None: it ends before the first mark.

    :param marks: those of which the slot still has the log.
    :param when: in microseconds since 1970.
    :param most: a position that the prefix must not go beyond, whatever the time.
    :raises LogGone: the slot is gone.
    :raises SourceUnavailable: it was moved on meanwhile.
    :raises ConfigurationError: the server does not tell when transactions committed.
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
    # A later commit that ends after a point begins after it: both are ends of records.
    points = [Lsn.parse(join.position) for join in joins if join.at <= when]
    end = max([position, *(point for point in points if until is None or point < until)])
    return Prefix(end, Mark(str(position), latest), until is not None)


def remember(settings: ConnectionSettings, name: str, beginning: str, mark: Mark, seconds: float) -> None:
    """Put a mark on record, so that the log before it need not be looked through again."""
    with session(settings) as connection:
        alone(connection, name, seconds)
        record = load(connection, name)
        if record is not None and record.beginning == beginning and mark not in record.marks:
            store(connection, name, record.with_mark(mark))
