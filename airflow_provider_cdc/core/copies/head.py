"""The head of a table: which of its copies is the latest, and whose copies they are.

A copy is told of as a record, ``_latest.json``, which anybody may read and any version may have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.core.copies.history import Trace, number_in
from airflow_provider_cdc.core.kinds import KINDS, Kind, parse_position
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import PositionError


@dataclass(frozen=True)
class Copy:
    """What is told of one table's copy.

    It is exact at ``position``, which stands under the source's own name for it, too: one of ``initial_gtid_set`` and
    ``initial_lsn`` is not None. ``as_of`` is what the run was asked to be exact at; empty: now. ``missed_as_of`` is
    what `Manifest.missed_as_of` gave. ``source`` is what `source_of` gave. ``path`` is a URI. Times are ISO 8601.
    ``files`` are all files of the copy, one object each: its ``name`` in the folder ``path``, its ``rows`` and
    ``bytes``, and its ``checksum`` (CRC-32). Copies of a part of a table say of which: ``where`` and ``columns``, as
    `Selection` has them. Records of earlier versions have only the run's id and the initial position. ``changes`` is
    the record of the changes that lead from the previous copy to this one, as `sinks.feeds` writes it. ``history`` is
    what `core.history.told` gave. ``more`` has what a later version added: whoever writes the record again keeps it.
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
    history: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


def decode_copy(data: Any, where: str) -> Copy:
    """Make a `Copy` from JSON data.

    :param where: what the record is called in an error.
    :raises ManifestError: the data is no such record.
    """
    if not isinstance(data, dict):
        return records.decode(Copy, data, where)
    names = {copy_field.name for copy_field in fields(Copy)} - {"more"}
    known_fields = {name: value for name, value in data.items() if name in names}
    return records.decode(Copy, {**known_fields, "more": {name: data[name] for name in data.keys() - names}}, where)


def encode_copy(copy: Copy) -> dict[str, Any]:
    """JSON data of ``copy``, without what it does not have."""
    data: dict[str, Any] = records.encode(copy)
    more = data.pop("more")
    entry = {name: value for name, value in data.items() if value not in (None, "", {}, (), [])}
    return {**entry, **more}


def source_of(kind: str, identity: Mapping[str, str], conn_id: str) -> dict[str, str]:
    """What a copy says of its source, from the identity of its server."""
    identity_fields = {
        "kind": kind,
        "connection": conn_id,
        "server": identity.get("server_uuid") or identity.get("system_identifier", ""),
        "database": identity.get("database", ""),
        "timeline": identity.get("timeline", ""),
    }
    return {name: value for name, value in identity_fields.items() if value}


def is_of_another_source(copy: Copy, source: Mapping[str, str], position: Position | None) -> bool:
    """Whether ``copy`` is not of ``source``, which has all of ``position`` (None: that is not known). What
    is not known is not held against it.

    Of some kinds (`Kind.takes_over`) a server that has all of the copy's position took over from the copy's own, if
    the connection is the same.
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
    return not (copied and type(copied) is type(position) and copied <= position)


def is_newer(copy: Copy, than: Copy) -> bool:
    """Whether ``copy`` is exact at a later position of the one source of both: in a later history, or in the same one.

    Where the positions do not tell, the time at which they were recorded does, then the order of the runs.
    """
    numbers = [number_in(compared.history) for compared in (copy, than)]
    if numbers[0] != numbers[1]:
        return numbers[0] > numbers[1]
    if order := _order(copy, than):
        return order > 0
    times = [_time(compared) for compared in (copy, than)]
    if times[0] and times[1] and times[0] != times[1]:
        return times[0] > times[1]
    return copy.run_id > than.run_id


def position_of(copy: Copy) -> str:
    """The position that ``copy`` is exact at, whichever version wrote its record; empty: the record does not say."""
    named = (_named_position(copy, kind) for kind in KINDS.values())
    return copy.position or next(filter(None, named), "")


def parsed_position_of(copy: Copy) -> Position | None:
    """`position_of`, parsed; None: the record does not say it, or has something else there."""
    try:
        return parse_position(known_source(copy).get("kind", ""), position_of(copy))
    except PositionError:
        return None


def trace_of(copy: Copy) -> Trace:
    """What ``copy`` leaves for its source to recognize its history by."""
    mark = copy.history.get("mark", "")
    return Trace(parsed_position_of(copy), mark if isinstance(mark, str) else "")


def describe(source: Mapping[str, str]) -> str:
    """A source in words."""
    return ", ".join(f"{name} {value}" for name, value in source.items()) or "an unknown source"


def _order(copy: Copy, than: Copy) -> int:
    """1: later, -1: earlier, 0: the positions are the same, or do not tell."""
    name, *other_kinds = {known_source(compared).get("kind", "") for compared in (copy, than)}
    kind = KINDS.get(name)
    # What one timeline has at an LSN says nothing of what another one has there.
    if other_kinds or kind is None or (kind.branch and _differ(copy.source, than.source, kind.branch)):
        return 0
    try:
        own_position, other_position = (parse_position(kind.name, position_of(compared)) for compared in (copy, than))
    except PositionError:
        return 0
    return int(other_position <= own_position) - int(own_position <= other_position)


def known_source(copy: Copy) -> dict[str, str]:
    """What is known of the source of ``copy``."""
    kinds = [kind.name for kind in KINDS.values() if _named_position(copy, kind) is not None]
    return {**({"kind": kinds[0]} if kinds else {}), **copy.source}


def _named_position(copy: Copy, kind: Kind) -> str | None:
    """Return the position that the record of ``copy`` has under this kind's own name for it."""
    position = getattr(copy, kind.position_key, copy.more.get(kind.position_key))
    return position if isinstance(position, str) else None


def _time(copy: Copy) -> datetime | None:
    try:
        recorded_at = datetime.fromisoformat(copy.recorded_at)
    except ValueError:
        return None
    # One without a zone cannot be compared with others.
    return recorded_at if recorded_at.tzinfo else recorded_at.replace(tzinfo=UTC)


def _differ(one: Mapping[str, str], other: Mapping[str, str], name: str) -> bool:
    return bool(one.get(name) and other.get(name)) and one[name] != other[name]
