"""Compares the shards of several sources: whether they fit into one merged table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_cdc.core.positions.as_of import parse
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.tables.merged import differences
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection
from airflow_provider_cdc.core.tables.table import Shard


@dataclass(frozen=True)
class PartOfMerged:
    """What the shards of one source share: their form, and the part of the tables that is copied."""

    shard: Shard
    selection: Selection = WHOLE


def unlike_sources(parts: Mapping[str, Mapping[str, PartOfMerged]]) -> dict[str, list[str]]:
    """Return, by the name of the merged table, why the shards of the sources do not fit into one table.

    :param parts: by source, and by the name of the merged table. All sources have the same options.
    """
    names = dict.fromkeys(name for of_source in parts.values() for name in of_source)
    found = {name: list(_unlike({source: own[name] for source, own in parts.items() if name in own})) for name in names}
    return {name: problems for name, problems in found.items() if problems}


def unfit_sources(sources: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    """Return why tables of these sources cannot be merged, and what to do. Empty: they can.

    :param sources: the results of `core.positions.facts.source_of`, by the connections.
    """
    kinds = {name: source.get("kind", "") for name, source in sources.items()}
    if len({*kinds.values()}) > 1:
        told = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        return f"the sources are of different kinds ({told})", "merge sources of one kind only"
    names: dict[tuple[str, str], str] = {}
    for name, source in sources.items():
        server = source.get("server", ""), source.get("database", "")
        other = names.setdefault(server, name)
        if server[0] and other != name:
            what = f"the connections {other} and {name} lead to one server, so its rows would be there twice"
            return what, "name each server once"
    return "", ""


def unfit_as_of(requested: str) -> tuple[str, str]:
    """Return why several sources cannot be copied as of ``requested`` (option ``as_of``), and what to do. Empty: they
    can.

    :raises PositionError: the text is not a value of ``as_of``.
    """
    if not isinstance(parse(requested), Position):
        return "", ""
    return f"{requested} is a position, and positions of several sources differ", "give a time, or leave out `as_of`"


def _unlike(parts: Mapping[str, PartOfMerged]) -> Iterable[str]:
    (first, wanted), *others = parts.items()
    for source, part in others:
        found = differences(part.shard.columns, part.shard.key, wanted.shard)
        if not found and part.shard.columns != wanted.shard.columns:
            found = [_differs(part.shard, wanted.shard)]
        if bool(part.shard.origin) != bool(wanted.shard.origin):
            found.append("only one of them has the origin columns")
        if part.shard.origin_in_key != wanted.shard.origin_in_key:
            found.append("only one of them has the origin in the key")
        if part.selection != wanted.selection:
            found.append(f"its copied part is {part.selection}, not {wanted.selection}")
        yield from (f"{source}: {what} (compared with {first})" for what in found)


def _differs(own: Shard, wanted: Shard) -> str:
    names = [column.name for column in wanted.columns]
    if [column.name for column in own.columns] != names:
        return f"its columns are in another order than {', '.join(names)}: set `column_order` = `name`"
    columns = [one.name for one, other in zip(own.columns, wanted.columns, strict=True) if one != other]
    return f"its columns {', '.join(columns)} may be null in one of them only"
