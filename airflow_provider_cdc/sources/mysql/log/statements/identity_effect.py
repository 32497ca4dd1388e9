"""What a logged statement may do to the identity of a table (`sources.mysql.tables.identity`)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class IdentityEffect(Enum):
    """Which parts of a table's identity a statement may change.

    Whoever lets another statement pass as one that changes no row gives it the narrowest class that is true of it, and
    adds a class where none is: a change of identity that no class allows counts as a change that is not in the log.
    """

    KEPT = "kept"
    """No part of it: ANALYZE PARTITION."""
    MARKED = "marked"
    """Its creation time becomes the time of the statement. The storage engine's tables stay: DDL in place."""
    EXTENDED = "extended"
    """As `MARKED`, and the storage engine's tables may become more: ADD PARTITION."""
    REBUILT = "rebuilt"
    """As `MARKED`, and the storage engine's tables may be others with the same rows: OPTIMIZE, ALGORITHM=COPY."""
    ANY = "any"
    """Any part of it, also without its creation time (TRUNCATE): whatever may change rows."""


_WIDER = tuple(IdentityEffect)


def widest(effects: Iterable[IdentityEffect]) -> IdentityEffect:
    """What a statement may do whose parts may do so much each."""
    return max(effects, key=_WIDER.index, default=IdentityEffect.KEPT)
