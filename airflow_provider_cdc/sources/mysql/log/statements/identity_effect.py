"""Effects of logged statements on the identity of a table (`sources.mysql.tables.identity`)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class IdentityEffect(Enum):
    """The parts of a table's identity that a statement may change.

    Statements that change no row are accepted. Give each accepted statement the narrowest member that describes its
    effect. If no member fits, add a new member. If the identity changes in a way that the member does not allow, the
    change is treated as a change that is not in the log.
    """

    KEPT = "kept"
    """The statement changes no part of the identity. Example: ANALYZE PARTITION."""
    MARKED = "marked"
    """The creation time becomes the time of the statement. The storage engine's tables stay the same. Example: in-place
    DDL."""
    EXTENDED = "extended"
    """Like `MARKED`, but the storage engine may also add tables. Example: ADD PARTITION."""
    REBUILT = "rebuilt"
    """Like `MARKED`, but the storage engine may also replace its tables with new tables that have the same rows.
    Examples: OPTIMIZE, ALGORITHM=COPY."""
    ANY = "any"
    """The statement may change any part of the identity, even without a new creation time. Example: TRUNCATE. All
    statements that may change rows have this effect."""


_WIDER = tuple(IdentityEffect)


def widest(effects: Iterable[IdentityEffect]) -> IdentityEffect:
    """Return the effect of a whole statement from the effects of its parts."""
    return max(effects, key=_WIDER.index, default=IdentityEffect.KEPT)
