"""Histories of a source: sequences of positions that a server really went through.

A server that is set back (a restored backup, a reset of its log) begins another history, in which the same positions
mean other rows. So every copy of a table says which history its position is of, and leaves a *mark*, by which its
source can tell later whether that history still goes on. Histories of a table's copies have numbers: a later one
supersedes those before, whatever the positions of their copies are. Within one number, positions are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.storage import records

MARK = "history_mark"
"""The name, in a server's identity (`InitialPoint`), of the mark of a position that was just fixed."""
KEPT = 10
"""So many superseded histories are remembered; each with a position, which may be long."""


class Relation(StrEnum):
    """How the history that a server has now is related to that of an earlier copy."""

    SAME = "same"
    """The server still has what the copy's position and mark name."""
    OTHER = "other"
    """Proved: the server no longer has it."""
    UNKNOWN = "unknown"
    """What would tell is gone from the server."""


@dataclass(frozen=True)
class Trace:
    """What a copy leaves for its source to recognize its history by. ``position`` is None if the copy does not say what
    it is exact at; ``mark`` is empty in copies of earlier versions."""

    position: Position | None
    mark: str = ""


@dataclass(frozen=True)
class Finding:
    """What a source found about a trace, and why, in words."""

    relation: Relation
    why: str = ""


@dataclass(frozen=True)
class Superseded:
    """A history that ended when the source was set back.

    ``id`` is the history's (empty: it had none). Its latest copy was that of the run ``run_id``, exact at ``position``.
    ``why`` tells how it was found to have ended, by the run ``found_by``, which began at ``found_at`` (ISO 8601).
    """

    id: str
    run_id: str
    position: str
    why: str
    found_by: str
    found_at: str


@dataclass(frozen=True)
class History:
    """The history that a table's copy is of.

    Copies with the same ``id`` are of one history, as far as the source tells. Of copies with different numbers, those
    with the greater ``number`` are later, whatever their positions are. The copy of the run ``begun_by`` is the first
    one with this id. ``unproven`` says why it is not known whether that copy is of the history of the copy before it;
    empty: it is known, or there was no copy. ``superseded`` are the last `KEPT` histories that ended, the latest one
    last.
    """

    id: str
    number: int = 1
    begun_by: str = ""
    unproven: str = ""
    superseded: tuple[Superseded, ...] = ()

    def ended_by(self, run_id: str) -> Superseded | None:
        """The history that the run of this id found to have ended; None: it found none."""
        return self.superseded[-1] if self.superseded and self.superseded[-1].found_by == run_id else None


def told(history: History | None, mark: str) -> dict[str, Any]:
    """What a copy tells readers of its history and its mark."""
    if history is None:
        return {}
    fields: dict[str, Any] = records.encode(history)
    return {name: value for name, value in (fields | {"mark": mark}).items() if value not in ("", [], ())}


def number_in(told: Mapping[str, Any]) -> int:
    """The number of the history that a copy tells of; copies of earlier versions are of the first one."""
    number = told.get("number", 1)
    return number if isinstance(number, int) else 1


def history_in(told: Mapping[str, Any]) -> History | None:
    """The history that a copy tells of; None: it does not say. What a later version added is left out."""
    if not isinstance(told.get("id"), str):
        return None
    superseded = told.get("superseded")
    return History(
        id=told["id"],
        number=number_in(told),
        begun_by=str(told.get("begun_by", "")),
        unproven=str(told.get("unproven", "")),
        superseded=tuple(_superseded(entry) for entry in superseded if isinstance(entry, Mapping))
        if isinstance(superseded, Sequence)
        else (),
    )


def _superseded(told: Mapping[str, Any]) -> Superseded:
    names = ("id", "run_id", "position", "why", "found_by", "found_at")
    return Superseded(**{name: str(told.get(name, "")) for name in names})
