"""Facts that a source records about its server when it fixes a position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.storage import records

# The names in records that both the sources and readers of copies know.
SERVER_UUID, SYSTEM_IDENTIFIER = "server_uuid", "system_identifier"
DATABASE, TIMELINE, VERSION, MARK, SLOT = "database", "timeline", "version", "history_mark", "slot"
LOG_SERVER = "log_server"


@dataclass(frozen=True)
class Reached:
    """The end of the chain of pieces of the log that a run has recorded: fields of the last `spool_chain.Link`."""

    end: LogEnd
    upper: str
    incarnation: str
    restarts: int
    known: str = ""


class Facts:
    """What a source recorded about its server when it fixed a position. Immutable and picklable.

    Only the source that recorded the facts decodes them (`MysqlFacts`, `PostgresFacts`). For all other code they are
    opaque, apart from the properties of this class, which are empty if the source has no such fact. In a record, facts
    are a JSON object of texts. Names that no longer mean anything stay, because records of earlier versions have them.

    ``may_move`` and ``reached`` are not recorded, but known from other records of the run: whether the run may let the
    source remove log that the run has spooled, and the end of this log. ``reached`` is None if no piece is recorded.
    """

    def __init__(self, recorded: Mapping[str, str], *, may_move: bool = False, reached: Reached | None = None) -> None:
        self._recorded = dict(recorded)
        self.may_move = may_move
        self.reached = reached

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Decode the JSON data of recorded facts.

        :raises ValueError: the data is not an object of texts.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"Expected `object`, got {data!r:.80}")
        for name, text in data.items():
            if not (isinstance(name, str) and isinstance(text, str)):
                raise ValueError(f"Expected a text under {name!r:.80}, got {text!r:.80}")
        return cls(data)

    def fields(self) -> dict[str, str]:
        """Return the JSON data of the recorded facts, for records and for the source that recorded them."""
        return dict(self._recorded)

    def spooling(self, reached: Reached | None) -> Self:
        """Return the facts of a run that spools its log up to ``reached``. None: no piece is recorded yet."""
        return type(self)(self._recorded, may_move=True, reached=reached)

    @property
    def server(self) -> str:
        """The id of the server."""
        return self._recorded.get(SERVER_UUID) or self._recorded.get(SYSTEM_IDENTIFIER, "")

    @property
    def database(self) -> str:
        """The name of the database, if positions belong to one database."""
        return self._recorded.get(DATABASE, "")

    @property
    def timeline(self) -> str:
        """The branch of the server's history. Positions of different branches cannot be compared."""
        return self._recorded.get(TIMELINE, "")

    @property
    def version(self) -> str:
        """The version of the server."""
        return self._recorded.get(VERSION, "")

    @property
    def mark(self) -> str:
        """The mark of the position that was fixed (`core.positions.facts`)."""
        return self._recorded.get(MARK, "")

    @property
    def slot(self) -> str:
        """The object on the server that keeps the log for the run."""
        return self._recorded.get(SLOT, "")

    @property
    def log_server(self) -> str:
        """The server from which the log is read (option ``log_conn_id``). Empty: it is read from the source itself."""
        return self._recorded.get(LOG_SERVER, "")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Facts):
            return NotImplemented
        return (self._recorded, self.may_move, self.reached) == (other._recorded, other.may_move, other.reached)

    def __hash__(self) -> int:
        return hash((frozenset(self._recorded.items()), self.may_move, self.reached))

    def __repr__(self) -> str:
        return f"Facts({self._recorded!r}, may_move={self.may_move}, reached={self.reached!r})"


def source_of(kind: str, identity: Facts, conn_id: str) -> dict[str, str]:
    """Return the description of the source that a copy records, from the identity of its server."""
    identity_fields = {
        "kind": kind,
        "connection": conn_id,
        "server": identity.server,
        "database": identity.database,
        "timeline": identity.timeline,
    }
    return {name: value for name, value in identity_fields.items() if value}


# Histories of a source: sequences of positions that a server went through.
#
# A server that is set back (by a restored backup, or a reset of its log) begins another history, in which the same
# positions mean other rows. So every copy of a table records the history that its position belongs to, and a *mark*.
# The mark is a value by which the source can check later whether the server is still in that history. The histories of
# a table's copies are numbered. A later history supersedes all earlier histories, even if their copies have greater
# positions. Within one history number, copies are compared by position.


KEPT = 10
"""The number of superseded histories that are recorded. The number is limited because each record has a position, which
may be a long text."""


class HistoryRelation(StrEnum):
    """How the server's present history relates to the history of an earlier copy."""

    SAME = "same"
    """The server still has the position and the mark of the copy."""
    OTHER = "other"
    """The server provably no longer has the transactions of the copy."""
    UNKNOWN = "unknown"
    """The server no longer has the log that would show whether the history is the same."""


@dataclass(frozen=True)
class Trace:
    """The position and the mark of a copy, by which the source recognizes the copy's history. ``position`` is None if
    the copy does not record it; ``mark`` is empty in copies of earlier versions. ``server`` and ``timeline`` are those
    of the copy's server (`Facts`); empty: unknown."""

    position: Position | None
    mark: str = ""
    server: str = ""
    timeline: str = ""


@dataclass(frozen=True)
class Finding:
    """The source's decision about the history of a trace, and the reason as text."""

    relation: HistoryRelation
    why: str = ""


@dataclass(frozen=True)
class Superseded:
    """A history that ended when the source was set back.

    ``id`` is the id of the history (empty: the history had no id). The latest copy of this history was made by the run
    ``run_id`` and is exact at ``position``. ``why`` is the evidence that the history ended. The run ``found_by``, which
    began at ``found_at`` (ISO 8601), detected the end.
    """

    id: str
    run_id: str
    position: str
    why: str
    found_by: str
    found_at: str


@dataclass(frozen=True)
class History:
    """The history that a table's copy belongs to.

    Copies with the same ``id`` belong to one history, unless the source could not detect that a history ended. If two
    copies have different numbers, the copy with the greater ``number`` is later, even if its position is smaller. The
    copy of the run ``begun_by`` is the first copy with this id. ``unproven`` says why it is unknown whether that first
    copy continues the history of the previous copy; empty: this is known, or there was no previous copy. ``superseded``
    holds the last `KEPT` histories that ended. The latest of them is last.
    """

    id: str
    number: int = 1
    begun_by: str = ""
    unproven: str = ""
    superseded: tuple[Superseded, ...] = ()

    def ended_by(self, run_id: str) -> Superseded | None:
        """Return the history that the run with this id found to have ended; None: the run found no such history."""
        return self.superseded[-1] if self.superseded and self.superseded[-1].found_by == run_id else None


def history_fields(history: History | None, mark: str) -> dict[str, Any]:
    """Return the history and the mark as the JSON data of a copy's record."""
    if history is None:
        return {}
    fields: dict[str, Any] = records.encode(history)
    return {name: value for name, value in (fields | {"mark": mark}).items() if value not in ("", [], ())}


def number_in(told: Mapping[str, Any]) -> int:
    """Return the history number in a copy's record. Copies of earlier versions belong to history 1."""
    number = told.get("number", 1)
    return number if isinstance(number, int) else 1


def history_in(told: Mapping[str, Any]) -> History | None:
    """Return the history in a copy's record; None: the record has no history. Fields that a later version added are
    left out."""
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
