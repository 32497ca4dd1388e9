"""Facts that a source records about its server when it fixes a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_cdc.core.positions.position import LogEnd

# The names in records that both the sources and readers of copies know.
SERVER_UUID, SYSTEM_IDENTIFIER = "server_uuid", "system_identifier"
DATABASE, TIMELINE, VERSION, MARK, SLOT = "database", "timeline", "version", "history_mark", "slot"


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
        """The mark of the position that was fixed (`core.positions.history`)."""
        return self._recorded.get(MARK, "")

    @property
    def slot(self) -> str:
        """The object on the server that keeps the log for the run."""
        return self._recorded.get(SLOT, "")

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
