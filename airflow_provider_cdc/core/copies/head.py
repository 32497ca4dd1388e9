"""The head of a table. It is the record of the table's latest copy, and names the source of the copy.

The record of a copy, ``_latest.json``, is public: any program may read it, and any version may have written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.core.positions.facts import Trace, history_in, number_in
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.kinds import KINDS, Kind, parse_position
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import PositionError


@dataclass(frozen=True)
class Copy:
    """The record of one table's copy.

    The copy is exact at ``position``. The position is also stored under the source's own name for it: either
    ``initial_gtid_set`` or ``initial_lsn`` is not None. ``as_of`` is the point that was requested; empty: now.
    ``missed_as_of`` is `Manifest.missed_as_of`. ``source`` is the result of `source_of`. ``path`` is a URI. Times are
    ISO 8601. ``files`` has one object for each file of the copy, with the ``name`` in the folder ``path``, ``rows``,
    ``bytes``, and ``checksum`` (CRC-32). For a copy of a part of a table, ``where`` and ``columns`` name the part, as
    in `Selection`. Records of earlier versions have only the run's id and the initial position. ``changes`` is the
    record of the changes between the previous copy and this copy, as `sinks.beside_copies` writes it. ``feed_gap`` is
    the record of the gap in the changes before this copy, from `sinks.beside_copies`, too. ``history`` is the result of
    `core.positions.facts.history_fields`. ``shards`` has one object for each shard of a merged table, with its name
    (``shard``) and ``rows``; the objects in ``files`` then also name their ``shard``. If its shards are in several
    sources, ``positions`` has the position of each source (`core.shards.copy_tables`), and ``position`` is empty.
    ``more`` has the fields that a later version added. These fields are kept when the record is written again.
    """

    run_id: str
    path: str = ""
    initial_gtid_set: str | None = None
    initial_lsn: str | None = None
    position: str = ""
    as_of: str = ""
    missed_as_of: str = ""
    recorded_at: str = ""
    source: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    where: str = ""
    columns: tuple[str, ...] = ()
    published_at: str = ""
    files: tuple[dict[str, Any], ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    feed_gap: dict[str, Any] = field(default_factory=dict)
    history: dict[str, Any] = field(default_factory=dict)
    shards: tuple[dict[str, Any], ...] = ()
    positions: tuple[dict[str, Any], ...] = ()
    more: dict[str, Any] = field(default_factory=dict)


def decode_copy(data: Any, where: str) -> Copy:
    """Decode the `Copy` in JSON data.

    :param where: the name of the record in an error.
    :raises ManifestError: the data is not the record of a copy.
    """
    if not isinstance(data, dict):
        return records.decode(Copy, data, where)
    names = {copy_field.name for copy_field in fields(Copy)} - {"more"}
    known_fields = {name: value for name, value in data.items() if name in names}
    return records.decode(Copy, {**known_fields, "more": {name: data[name] for name in data.keys() - names}}, where)


def encode_copy(copy: Copy) -> dict[str, Any]:
    """Return the JSON data of ``copy``, without empty fields."""
    data: dict[str, Any] = records.encode(copy)
    more = data.pop("more")
    entry = {name: value for name, value in data.items() if value not in (None, "", {}, (), [])}
    return {**entry, **more}


def is_of_another_source(copy: Copy, source: Mapping[str, str], position: Position | None) -> bool:
    """Return whether ``copy`` is of a source other than ``source``. The source has reached ``position`` (None: its
    position is unknown). Unknown facts do not count as a difference.

    For some kinds (`Kind.takes_over`), another server counts as the same source if it has the same connection and some
    transactions of the copy's position: it took over from the copy's server. It may lack others that were lost.
    """
    source_of_copy = known_source(copy)
    if _differ(source_of_copy, source, "kind") or _differ(source_of_copy, source, "database"):
        return True
    if not _differ(source_of_copy, source, "server"):
        return False
    kind = KINDS.get(source.get("kind", ""))
    if kind is None or not kind.takes_over or _differ(source_of_copy, source, "connection"):
        return True
    try:
        copied = parse_position(kind.name, position_of(copy))
    except PositionError:
        return True
    return not (isinstance(copied, GtidSet) and isinstance(position, GtidSet) and copied & position)


def is_of_another(copy: Copy, latest: Copy) -> bool:
    """Return whether the records show that ``copy`` is of another source than ``latest``. Unknown facts do not count as
    a difference."""
    if not latest.source or copy.run_id == latest.run_id:
        return False
    if is_of_another_source(copy, latest.source, parsed_position_of(latest)):
        return True
    if not _differ(copy.source, latest.source, "server"):
        return False
    # When another server takes over, a run of the earlier server may end later than a run of the new server. But if
    # both servers accept writes, each has transactions that the other lacks, and neither copy follows the other. Then a
    # run must have found that the history of one of them has ended.
    one, other = parsed_position_of(copy), parsed_position_of(latest)
    follows = one is not None and other is not None and (one <= other or other <= one)
    return not (follows or _has_ended(copy, latest) or _has_ended(latest, copy))


def _has_ended(copy: Copy, by: Copy) -> bool:
    """Return whether the run of ``by``, or an earlier one, found that the history of ``copy`` has ended."""
    known, own = history_in(by.history), history_in(copy.history)
    ended = known.superseded if known is not None else ()
    return any(one.run_id == copy.run_id or (own is not None and one.id == own.id) for one in ended)


def is_newer(copy: Copy, than: Copy) -> bool:
    """Return whether ``copy`` is newer than ``than``, a copy of the same source. Copies are compared by history number,
    and then by position.

    If the positions do not determine an order, compare the times at which they were recorded, and then the run ids.
    Copies with the positions of several sources are compared source by source.
    """
    later, earlier = _sources_in_order(copy, than)
    if later != earlier:
        return later
    numbers = [number_in(compared.history) for compared in (copy, than)]
    if numbers[0] != numbers[1]:
        return numbers[0] > numbers[1]
    if order := _order(copy, than):
        return order > 0
    times = [_time(compared) for compared in (copy, than)]
    if times[0] and times[1] and times[0] != times[1]:
        return times[0] > times[1]
    return copy.run_id > than.run_id


def _sources_in_order(copy: Copy, than: Copy) -> tuple[bool, bool]:
    """Return whether ``copy`` is newer than ``than`` in a source that both have, and whether it is older in one."""
    own, other = (
        {str(entry.get("source", "")): _copy_of_source(entry) for entry in compared.positions}
        for compared in (copy, than)
    )
    pairs = [(own[name], other[name]) for name in own.keys() & other.keys() if own[name].run_id != other[name].run_id]
    return any(_is_later(*pair) for pair in pairs), any(_is_later(*reversed(pair)) for pair in pairs)


def _is_later(copy: Copy, than: Copy) -> bool:
    """Return whether the copy of one source is newer than another copy of this source.

    A source may have been moved to another server, with the operator's consent. Positions and history numbers of the
    old server say nothing about those of the new one, so the times decide.
    """
    times = [_time(compared) for compared in (copy, than)]
    moved = _differ(copy.source, than.source, "server") or _differ(copy.source, than.source, "database")
    if moved and times[0] and times[1] and times[0] != times[1]:
        return times[0] > times[1]
    return is_newer(copy, than)


def _copy_of_source(entry: Mapping[str, Any]) -> Copy:
    """Return the facts of one source in ``positions`` as the record of a copy."""
    names = ("kind", "server", "database", "timeline")
    history = entry.get("history")
    return Copy(
        run_id=str(entry.get("run_id", "")),
        position=str(entry.get("position", "")),
        recorded_at=str(entry.get("recorded_at", "")),
        source={name: str(entry[name]) for name in names if name in entry},
        history=dict(history) if isinstance(history, Mapping) else {},
    )


def position_of(copy: Copy) -> str:
    """Return the position of ``copy``, from a record of any version; empty: the record has no position."""
    named = (_named_position(copy, kind) for kind in KINDS.values())
    return copy.position or next(filter(None, named), "")


def parsed_position_of(copy: Copy) -> Position | None:
    """Return the parsed result of `position_of`; None: the record has no position, or an invalid one."""
    try:
        return parse_position(known_source(copy).get("kind", ""), position_of(copy))
    except PositionError:
        return None


def trace_of(copy: Copy) -> Trace:
    """Return the trace of ``copy``, by which the source recognizes the history of the copy."""
    mark = copy.history.get("mark", "")
    source = known_source(copy)
    mark = mark if isinstance(mark, str) else ""
    return Trace(parsed_position_of(copy), mark, source.get("server", ""), source.get("timeline", ""))


def describe(source: Mapping[str, str]) -> str:
    """Describe a source as text."""
    return ", ".join(f"{name} {value}" for name, value in source.items()) or "an unknown source"


def _order(copy: Copy, than: Copy) -> int:
    """Compare the positions of two copies. Return 1 if the position of ``copy`` is later, -1 if it is earlier, and 0 if
    the positions are equal or not comparable."""
    name, *other_kinds = {known_source(compared).get("kind", "") for compared in (copy, than)}
    kind = KINDS.get(name)
    # LSNs of different timelines are not comparable.
    if other_kinds or kind is None or (kind.branch and _differ(copy.source, than.source, kind.branch)):
        return 0
    try:
        own_position, other_position = (parse_position(kind.name, position_of(compared)) for compared in (copy, than))
    except PositionError:
        return 0
    return int(other_position <= own_position) - int(own_position <= other_position)


def known_source(copy: Copy) -> dict[str, str]:
    """Return the source of ``copy``, from the facts in its record."""
    kinds = [kind.name for kind in KINDS.values() if _named_position(copy, kind) is not None]
    return {**({"kind": kinds[0]} if kinds else {}), **copy.source}


def _named_position(copy: Copy, kind: Kind) -> str | None:
    """Return the position that the record of ``copy`` has under this kind's own key."""
    position = getattr(copy, kind.position_key, copy.more.get(kind.position_key))
    return position if isinstance(position, str) else None


def _time(copy: Copy) -> datetime | None:
    try:
        recorded_at = datetime.fromisoformat(copy.recorded_at)
    except ValueError:
        return None
    # Python cannot compare a time that has a time zone with a time that has none.
    return recorded_at if recorded_at.tzinfo else recorded_at.replace(tzinfo=UTC)


def _differ(one: Mapping[str, str], other: Mapping[str, str], name: str) -> bool:
    return bool(one.get(name) and other.get(name)) and one[name] != other[name]
