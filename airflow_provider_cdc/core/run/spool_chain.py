"""The chain of pieces of the log that a run has spooled: the records, and what they mean for the checks of the source.

A piece covers one stretch of the log. The pieces join: each piece begins where the previous piece ends. A *link* is the
record of one piece. It is created only once, so each stretch has one piece, whatever the number of attempts. The number
of a link is its place in the chain. The chain belongs to one manifest, so a run that begins anew has a new chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.run import OFF
from airflow_provider_cdc.core.positions.facts import Facts, Reached
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

SPOOL = "delta/spool"


@dataclass(frozen=True)
class Link:
    """The record of one piece.

    ``start`` and ``end`` are places in the log; ``start`` of the first piece is empty. ``upper`` is a bound, as text,
    on all transactions before ``end``. ``incarnation`` is the server's incarnation when ``end`` was noted, and
    ``restarts`` counts how often it had changed since the run began. ``next_segment`` is the number of the next
    segment. ``record`` names the record with the files of the piece. ``token`` identifies the attempt. ``known`` is
    what the source must know about the tables when it no longer has the log before ``end`` (`Source.note_tables`).
    """

    number: int
    token: str
    start: LogEnd
    end: LogEnd
    upper: str
    incarnation: str
    restarts: int
    next_segment: int
    record: str
    known: str = ""


class Chain:
    """The chain of the run in ``folder`` with the manifest of this ``digest``. A manifest has more chains, with other
    names, if reads of earlier manifests count."""

    def __init__(self, folder: Storage, digest: str, name: str = "") -> None:
        self._folder = folder
        self._place = f"{SPOOL}/{digest[:16]}{name}"
        self.links: list[Link] = []

    def name_of(self, number: int) -> str:
        return f"{self._place}/{number:06}.json"

    def refresh(self) -> list[Link]:
        """Read the links that were recorded since the last call. Return all links."""
        while self._folder.exists(name := self.name_of(len(self.links) + 1)):
            self.links.append(records.read(Link, self._folder, name))
        return self.links

    def append(self, link: Link) -> bool:
        """Record a link, unless the chain already has a link of this number. Return whether the link was recorded."""
        self._folder.create_json(self.name_of(link.number), records.encode(link))
        return self.refresh()[link.number - 1] == link

    def last(self) -> Link | None:
        """Return the last recorded link. This reads only the last link, so it is cheap for a long chain."""
        numbers = [int(name[-11:-5]) for name in self._folder.files(self._place) if name.endswith(".json")]
        if not numbers:
            return None
        last = max(numbers)
        while self._folder.exists(self.name_of(last + 1)):
            last += 1
        return records.read(Link, self._folder, self.name_of(last))


def spooling_identity(identity: Facts, folder: Storage, digest: str, option: str) -> Facts:
    """Return the identity that the checks of the source expect. It allows the source to lack the log before the end of
    the recorded chain.

    :param option: the option ``spool``.
    """
    if option == OFF:
        return identity
    link = Chain(folder, digest).last()
    return identity.spooling(None) if link is None else reaching(identity, link)


def reaching(identity: Facts, link: Link) -> Facts:
    """Return the identity that allows the source to lack the log before the end of ``link``."""
    return identity.spooling(Reached(link.end, link.upper, link.incarnation, link.restarts, link.known))
