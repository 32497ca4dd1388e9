"""The head of a table: which of its copies is the latest, and whose copies they are.

A copy is told of as a record (``_latest.json``): its ``run_id``, what it is exact at (``position``, and under the
source's own name ``initial_gtid_set`` or ``initial_lsn``), when that was recorded (``recorded_at``), its ``source``.
Records of earlier versions have only the run's id and the initial position.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.core.lsn import Lsn
from airflow_provider_cdc.errors import PositionError

_KINDS = {"initial_gtid_set": "mysql", "initial_lsn": "postgres"}

Record = Mapping[str, Any]


def source_of(kind: str, identity: Mapping[str, str], conn_id: str) -> dict[str, str]:
    """What a copy says of its source, from the identity of its server."""
    found = {
        "kind": kind,
        "connection": conn_id,
        "server": identity.get("server_uuid") or identity.get("system_identifier", ""),
        "database": identity.get("database", ""),
        "timeline": identity.get("timeline", ""),
    }
    return {name: value for name, value in found.items() if value}


def is_of_another_source(copy: Record, source: Mapping[str, str], position: str) -> bool:
    """Whether ``copy`` is not of ``source``, which has all of ``position``. What is not known is not held against it.

    A MySQL server that has every transaction of the copy took over from the copy's own, if the connection is the same.
    """
    theirs = _source(copy)
    if _differ(theirs, source, "kind") or _differ(theirs, source, "database"):
        return True
    if not _differ(theirs, source, "server"):
        return False
    if source["kind"] != "mysql" or _differ(theirs, source, "connection"):
        return True
    try:
        copied, reached = GtidSet.parse(_position(copy)), GtidSet.parse(position)
    except PositionError:
        return True
    return not (copied and copied <= reached)


def is_newer(copy: Record, than: Record) -> bool:
    """Whether ``copy`` is exact at a later position of the one source of both.

    Where the positions do not tell, the time at which they were recorded does, then the order of the runs.
    """
    if order := _order(copy, than):
        return order > 0
    times = [_time(record) for record in (copy, than)]
    if times[0] and times[1] and times[0] != times[1]:
        return times[0] > times[1]
    return str(copy["run_id"]) > str(than["run_id"])


def describe(copy: Record) -> str:
    """The source of ``copy``, in words."""
    return ", ".join(f"{name} {value}" for name, value in _source(copy).items()) or "an unknown source"


def _order(copy: Record, than: Record) -> int:
    """1: later, -1: earlier, 0: the positions are the same, or do not tell."""
    kinds = {_source(record).get("kind") for record in (copy, than)}
    try:
        if kinds == {"mysql"}:
            ours, theirs = (GtidSet.parse(_position(record)) for record in (copy, than))
            return int(theirs <= ours) - int(ours <= theirs)
        # What one timeline has at an LSN says nothing of what another one has there.
        if kinds == {"postgres"} and not _differ(_source(copy), _source(than), "timeline"):
            mine, other = (Lsn.parse(_position(record)) for record in (copy, than))
            return int(mine > other) - int(mine < other)
    except PositionError:
        pass
    return 0


def _source(copy: Record) -> dict[str, str]:
    source = dict(copy.get("source") or {})
    for key, kind in _KINDS.items():
        if key in copy:
            source.setdefault("kind", kind)
    return source


def _position(copy: Record) -> str:
    known = [copy[key] for key in ("position", *_KINDS) if key in copy]
    return str(known[0]) if known else ""


def _time(copy: Record) -> datetime | None:
    try:
        return datetime.fromisoformat(copy["recorded_at"])
    except (KeyError, TypeError, ValueError):
        return None


def _differ(one: Mapping[str, str], other: Mapping[str, str], name: str) -> bool:
    return bool(one.get(name) and other.get(name)) and one[name] != other[name]
