"""Vectors of positions: the positions of a merged table whose shards are in several sources, one for each source.

The record of such a copy has no single position. Its ``positions`` (`core.copies.head.Copy`) has one object for each
source: the connection (``source``), the ``run_id`` of the run that copied its shards, the ``position``, and the facts
by which positions of one source are compared, such as the ``history`` that the copy belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SEVERAL = "several"
"""The ``server`` in the record of a copy whose shards are on several servers."""


def position_entry(
    source_conn_id: str,
    run_id: str,
    position_key: str,
    position: str,
    recorded_at: str,
    source: Mapping[str, str],
) -> dict[str, Any]:
    """Return the object of one source in ``positions``.

    :param source: the result of `core.copies.head.source_of`.
    """
    told = {name: value for name, value in source.items() if name != "connection"}
    entry = {
        "source": source_conn_id,
        "run_id": run_id,
        "position": position,
        position_key: position,
        "recorded_at": recorded_at,
        **told,
    }
    return {name: value for name, value in entry.items() if value}


def merged_source(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the description of the source in the record of a copy with several sources.

    It does not depend on the list of the sources, except ``connection``, which is not compared.
    """
    names = ", ".join(str(entry["source"]) for entry in entries)
    return {"kind": str(entries[0].get("kind", "")), "connection": names, "server": SEVERAL}


def by_source(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the objects in ``positions`` by their source."""
    return {str(entry.get("source", "")): entry for entry in entries}


def positions_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the position of each source, by its connection."""
    return {source: str(entry.get("position", "")) for source, entry in by_source(entries).items()}
