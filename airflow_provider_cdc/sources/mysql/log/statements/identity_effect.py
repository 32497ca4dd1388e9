"""Effects of logged statements on the identity of a table (`sources.mysql.tables.identity`)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class IdentityEffect(Enum):
    """The parts of a table's identity that a statement may change.

    Each statement that is accepted because it changes no row must have the narrowest class that describes it. If no
    class fits, add one: an identity change that the statement's class does not allow is treated as a change that is not
    in the log.
    """

    KEPT = "kept"
    """The statement changes no part of the identity: ANALYZE PARTITION."""
    MARKED = "marked"
    """The creation time becomes the time of the statement. The storage engine's tables stay the same: in-place DDL."""
    EXTENDED = "extended"
    """Like `MARKED`, and the storage engine may add tables: ADD PARTITION."""
    REBUILT = "rebuilt"
    """Like `MARKED`, and the storage engine's tables may be replaced by others with the same rows: OPTIMIZE,
    ALGORITHM=COPY."""
    ANY = "any"
    """The statement may change any part, even without a new creation time (TRUNCATE). All statements that may change
    rows have this class."""


_WIDER = tuple(IdentityEffect)


def widest(effects: Iterable[IdentityEffect]) -> IdentityEffect:
    """Return the effect of a statement whose parts have these effects."""
    return max(effects, key=_WIDER.index, default=IdentityEffect.KEPT)
