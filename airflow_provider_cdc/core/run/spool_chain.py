"""The chain of pieces of the log that a run has spooled, and what they mean for the checks of the source.

A piece covers one stretch of the log since one start of the run. The pieces join: each piece begins where the previous
piece ends. A *link* is the entry of one piece in the ledger of the run (`core.run.ledger.PieceTaken`). So each stretch
has one piece, whatever the number of attempts. The number of a link is its place in the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.run import OFF
from airflow_provider_cdc.core.positions.facts import Facts, Reached
from airflow_provider_cdc.core.positions.position import LogEnd

SPOOL = "delta/spool"


@dataclass(frozen=True)
class Link:
    """The record of one piece.

    ``start`` and ``end`` are places in the log; ``start`` of the first piece is empty. ``upper`` is a bound, as text,
    on all transactions before ``end``. ``incarnation`` is the server's incarnation when ``end`` was noted, and
    ``restarts`` counts how often it had changed since the run began. ``next_segment`` is the number of the next
    segment. ``record`` names the record with the files of the piece. ``token`` identifies the attempt. ``known`` is
    what the source must know about the tables when it no longer has the log before ``end`` (`Source.note_tables`).
    ``manifest`` is the number of the manifest that has the columns of the tables in the piece.
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
    manifest: int = 1


def spooling_identity(identity: Facts, last: Link | None, option: str) -> Facts:
    """Return the identity that the checks of the source expect. It allows the source to lack the log before the end of
    the recorded chain.

    :param last: the last piece. None: no piece is recorded.
    :param option: the option ``spool``.
    """
    if option == OFF:
        return identity
    return identity.spooling(None) if last is None else reaching(identity, last)


def reaching(identity: Facts, link: Link) -> Facts:
    """Return the identity that allows the source to lack the log before the end of ``link``."""
    return identity.spooling(Reached(link.end, link.upper, link.incarnation, link.restarts, link.known))
