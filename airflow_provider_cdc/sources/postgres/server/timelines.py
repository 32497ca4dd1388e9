"""Timelines: the branches of a server's history.

A standby that is promoted begins a new timeline, and leaves the old one at a position, the *fork*. Up to the fork, both
timelines have the same log, so a position before it means the same rows on both. Beyond the fork, positions of the old
timeline mean nothing on the new one: another primary has given them to other transactions, or they were lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import query, session

_FIRST = "1"


def forks(settings: ConnectionSettings, timeline: str) -> Mapping[str, Lsn]:
    """Return the forks of the server's present ``timeline``: where its history left each earlier timeline.

    Empty if the server no longer has the file with the history, or is a standby, which has no timeline of its own.
    """
    if timeline in ("", _FIRST):
        return {}
    try:
        with session(settings, replication=True) as connection:
            ((_, content),) = query(connection, f"TIMELINE_HISTORY {int(timeline)}")
    except psycopg.errors.UndefinedFile:
        return {}
    text = content.decode() if isinstance(content, bytes) else content
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: dict[str, Lsn] = {}
    # A recovery to a target before an earlier fork keeps this fork in the file, but the history left the earlier
    # timeline at the target. So a later line bounds all lines before it.
    for line in reversed(lines):
        found[line[0]] = min([Lsn.parse(line[1]), *found.values()])
    return found


def why_not_here(settings: ConnectionSettings, here: str, timeline: str, position: Lsn) -> str:
    """Return why a ``position`` on ``timeline`` is not in the history of the server. Empty: it is in this history.

    :param here: the server's present timeline.
    """
    if timeline == here:
        return ""
    fork = forks(settings, here).get(timeline)
    if fork is None:
        return f"the history of the server's timeline {here} does not include the timeline {timeline}"
    if position > fork:
        return f"a standby took over at {fork}, before the position {position} of the timeline {timeline}"
    return ""
