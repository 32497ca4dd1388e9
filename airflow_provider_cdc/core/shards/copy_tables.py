"""Groups the tables of a run by the copy in which they are published: alone, or as the shards of a merged table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.tables.table import TableName


@dataclass(frozen=True)
class CopyTables:
    """The tables that are published together in one copy: the shards of a merged table, or one table."""

    name: TableName
    tables: tuple[RunTable, ...]

    @property
    def first(self) -> RunTable:
        return self.tables[0]

    @property
    def merged(self) -> bool:
        return self.first.table.shard is not None

    @property
    def base(self) -> str:
        """The run whose copy the tables are rolled forward from; empty: all tables are read."""
        return next((entry.base for entry in self.tables if entry.base), "")


def copies_of(tables: Iterable[RunTable]) -> list[CopyTables]:
    """Group tables by the copy in which they are published, in their order."""
    by_copy: dict[TableName, list[RunTable]] = {}
    for entry in tables:
        by_copy.setdefault(entry.table.copy_name, []).append(entry)
    return [CopyTables(name, tuple(entries)) for name, entries in by_copy.items()]


def copy_names(tables: Iterable[RunTable]) -> list[TableName]:
    """Return the names of the copies of these tables, each once."""
    return list(dict.fromkeys(entry.table.copy_name for entry in tables))


def skip_whole_merged_tables(tables: Sequence[RunTable], skipped: Mapping[str, str]) -> dict[str, str]:
    """Return ``skipped`` with all shards of the merged tables that lack a shard: a merged table is published with all
    of its shards, or not at all.

    :param skipped: the reasons why tables are left out, by the table's name.
    """
    result = dict(skipped)
    for copy in copies_of(tables):
        names = [str(entry.table.name) for entry in copy.tables]
        failed = next((name for name in names if name in skipped), None)
        if copy.merged and failed is not None:
            why = f"{_because_of(copy)} its shard {failed} is: {skipped[failed]}"
            result |= {name: why for name in names if name not in skipped}
    return result


def with_merged(tables: Sequence[RunTable], skipped: Mapping[str, str]) -> dict[str, str]:
    """Return ``skipped`` with the names of merged tables that are left out."""
    result = dict(skipped)
    for copy in copies_of(tables):
        names = [str(entry.table.name) for entry in copy.tables if str(entry.table.name) in skipped]
        # Name the shard that is the cause.
        failed = next((name for name in names if not skipped[name].startswith(_because_of(copy))), None)
        if copy.merged and failed is not None:
            result[str(copy.name)] = f"its shard {failed}: {skipped[failed]}"
    return result


def _because_of(copy: CopyTables) -> str:
    return f"{copy.name} is left out, because"


def totals_by_copy(copies: Iterable[CopyTables], by_table: Mapping[str, int]) -> dict[str, int]:
    """Return the sum over the tables of each copy, by the copy's table name.

    :param by_table: a number for each table, by its name.
    """
    return {str(copy.name): sum(by_table.get(str(entry.table.name), 0) for entry in copy.tables) for copy in copies}


def rows_of_shards(copies: Iterable[CopyTables], rows: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the number of rows of each shard, by the name of the merged table and the name of the shard."""
    return {
        str(copy.name): {name: rows[name] for name in (str(entry.table.name) for entry in copy.tables)}
        for copy in copies
        if copy.merged
    }


# Vectors of positions: the positions of a merged table whose shards are in several sources, one for each source.
#
# The record of such a copy has no single position. Its ``positions`` (`core.copies.head.Copy`) has one object for each
# source: the connection (``source``), the ``run_id`` of the run that copied its shards, the ``position``, and the facts
# by which positions of one source are compared, such as the ``history`` that the copy belongs to.


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

    :param source: the result of `core.positions.facts.source_of`.
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
