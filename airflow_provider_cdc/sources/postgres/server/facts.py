"""What a PostgreSQL source records about its server when it fixes a position."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_cdc.core.positions.facts import (
    DATABASE,
    MARK,
    SLOT,
    SYSTEM_IDENTIFIER,
    TIMELINE,
    VERSION,
    Facts,
    Reached,
)
from airflow_provider_cdc.core.positions.position import Lsn

MEANING = "lc_monetary"
"""The setting that determines the currency of ``money`` values. Each database has its own value, which must not change
during a run."""
_DATABASE_OID = "database_oid"
_PUBLICATION, _STANDING, _SINCE = "publication", "standing", "publication_since"
_MADE, _FORWARD, _STANDING_NAME = "publication_made", "forward_slots", "standing_publication"


@dataclass(frozen=True)
class PublicationState:
    """A publication, as it was when a run began. ``state`` is the state of its members
    (`publications.publication_state`) and ``relations`` lists the OIDs of the relations to which the state is
    limited; empty: all members. ``state`` is None if it was not recorded."""

    name: str
    state: str | None = None
    relations: str = ""


@dataclass(frozen=True)
class PostgresFacts:
    """The identity of a server, and the objects on it that keep the log for a run.

    ``mark`` is the mark of the position. ``lc_monetary`` is the currency of ``money`` values; None: it was not
    recorded. ``started`` is the time at which the server was started. It is set only where a restart is not allowed,
    and is never recorded. ``slot`` is the run's slot; it is empty before it exists. ``publication_made`` says whether
    the run created its ``publication``. ``since`` is the mark (`publications.now`) after which no session may alter
    the run's own publication; None: the run uses a publication of others. ``forward_slots`` has the slots for the
    copies that the run rolls forward, by their positions. ``standing`` is the publication that has listed the tables
    since these positions. ``may_move`` and ``reached`` are those of `Facts`.
    """

    system_identifier: str = ""
    timeline: str = ""
    database: str = ""
    database_oid: str = ""
    version: str = ""
    lc_monetary: str | None = None
    mark: str = ""
    started: str | None = None
    slot: str = ""
    publication: PublicationState = PublicationState("")
    publication_made: bool = False
    since: str | None = None
    forward_slots: Mapping[Lsn, str] = field(default_factory=dict)
    standing: PublicationState = PublicationState("")
    may_move: bool = False
    reached: Reached | None = None

    @classmethod
    def of(cls, facts: Facts) -> PostgresFacts:
        """Decode recorded facts.

        :raises PositionError: a text is not an LSN.
        """
        recorded = facts.fields()
        forward = json.loads(recorded.get(_FORWARD, "{}"))
        return cls(
            system_identifier=facts.server,
            timeline=facts.timeline,
            database=facts.database,
            database_oid=recorded.get(_DATABASE_OID, ""),
            version=facts.version,
            lc_monetary=recorded.get(MEANING),
            mark=facts.mark,
            slot=facts.slot,
            publication=_publication(recorded, _PUBLICATION, _PUBLICATION),
            publication_made=bool(recorded.get(_MADE)),
            since=recorded.get(_SINCE),
            forward_slots={Lsn.parse(start): slot for start, slot in forward.items()},
            standing=_publication(recorded, _STANDING, _STANDING_NAME),
            may_move=facts.may_move,
            reached=facts.reached,
        )

    def recorded(self) -> Facts:
        """Encode the facts for a record."""
        known = {
            SYSTEM_IDENTIFIER: self.system_identifier,
            TIMELINE: self.timeline,
            DATABASE: self.database,
            _DATABASE_OID: self.database_oid,
            VERSION: self.version,
            MARK: self.mark,
        }
        found = {name: text for name, text in known.items() if text}
        if self.lc_monetary is not None:
            found[MEANING] = self.lc_monetary
        if self.slot:
            found |= {SLOT: self.slot, _PUBLICATION: self.publication.name}
            found[_MADE] = "yes" if self.publication_made else ""
        if self.since is not None:
            found[_SINCE] = self.since
        if self.forward_slots:
            found[_FORWARD] = json.dumps({str(start): slot for start, slot in self.forward_slots.items()})
            found[_STANDING_NAME] = self.standing.name
        for kind, publication in ((_PUBLICATION, self.publication), (_STANDING, self.standing)):
            if publication.state is not None:
                found[f"{kind}_state"] = publication.state
            if publication.relations:
                found[f"{kind}_relations"] = publication.relations
        return Facts(found)

    def of_copies(self, start: Lsn) -> PostgresFacts:
        """Return the facts with the slot and the publication that keep the log since copies at ``start``."""
        return replace(self, slot=self.forward_slots[start], publication=self.standing)

    @property
    def of_server(self) -> dict[str, str]:
        """The values that distinguish the server, its timeline and its database from others, by name."""
        return {
            SYSTEM_IDENTIFIER: self.system_identifier,
            TIMELINE: self.timeline,
            _DATABASE_OID: self.database_oid,
        }


def _publication(recorded: Mapping[str, str], kind: str, name: str) -> PublicationState:
    """Decode the publication of which the names of the state begin with ``kind``.

    :param name: the key of the publication's name.
    """
    return PublicationState(
        recorded.get(name, ""), recorded.get(f"{kind}_state"), recorded.get(f"{kind}_relations", "")
    )
