"""Net changes: the algebra that makes a rewind exact.

This module is the specification. The fast implementations are tested against it.

Keyed tables
------------
The *net change* of a window has, for every key that the window touches, the row *before* the window
and the row *after* it (None: no row). A single event is a window, too: an INSERT has ``before=None``, a DELETE has
``after=None``, and an UPDATE that changes the key is a DELETE of the old key and an INSERT of the new key. The net
changes of two consecutive windows A and B compose::

    net(A·B)[k] = Change(before = A[k].before if k in A else B[k].before,
                         after  = B[k].after  if k in B else A[k].after)

Composition is associative, and the empty window is its identity, so net changes form a monoid. So a window may be cut
anywhere, for instance at the ends of log files. The net changes of the pieces may be computed in parallel, and may be
composed in any grouping that keeps their order.

**Rewind theorem.** Let I be the initial position. Let each row of a table be read once, at any time after I was
recorded. Let P be the end of the log after the last read. For a key k, consider the events on k, in log order, that are
in the log before P and belong to transactions not in I. If there are no such events, the state that was read at k (a
row or no row) is the state at I. Otherwise, the state at I is the ``before`` of the first of these events.

*Proof.* (1) A transaction is written to the log before it becomes visible, so everything that a read saw lies before P.
(2) A transaction enters I only after it became visible, so every read saw all of I. (3) Row locks last until the
commit, so the events on one key become visible in the order of the log. Commits are ordered like the log, so I is
closed under this order: every event on k that precedes the first event not in I is itself in I. If there is no event on
k outside I, then by (1) and (2) each read saw the state of k at I. If there are events on k outside I, then by (3) the
before image of the first such event is the state of k at I. In both cases it does not matter which later transactions a
read saw. ∎

Corollary: only ``before`` is needed to rewind. Reading a chunk again, or applying the same part of the log again, does
not change the result. It does not matter when, how often or in what order chunks are read.

Changes without direction
-------------------------
Let X be the position of the copy. A base whose position is X or earlier needs the events up to X, and takes the rows
after them. Rows that were read after X need the events back to X, and take the rows before them. `towards` makes both
the same: for every touched key, the row *now*, at X, and the row that an exact base *was* to have. What applies such a
change (`bring`) need not know on which side of X the rows were read.

A read that lasts across X has events on both sides. By the theorem, each side alone gives the row at X of every key
that it touches. So `overlay` compares the two sides wherever both touch a key, at no cost, and takes the forward side.
(No step overlays changes yet. A read is begun again if the position of the copy moves behind its beginning.)

Keyless tables
--------------
Without a key, there is no first event of a key. The net change is a signed multiset: it maps each row to the number of
times that the row was added, minus the number of times that it was removed. Signed multisets form an abelian group. Let
S be the multiset that was read at an *exact* position U ⊇ I, and W the net change of U∖I. Then the multiset at I is
S − W. S − W must have no negative count: a negative count proves a mistake and stops the run. Towards X, the change is
−W. If S was read before X, it is W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CopyMismatch

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", bound=Hashable)


@dataclass(frozen=True)
class Change(Generic[Row]):
    """The change of one key in a window: the row before it and the row after it; None: no row."""

    before: Row | None
    after: Row | None


NetChange = Mapping[Key, Change[Row]]


def compose(first: NetChange[Key, Row], second: NetChange[Key, Row]) -> dict[Key, Change[Row]]:
    """Return the net change of the window ``first`` followed by the window ``second``."""
    result = dict(first)
    for key, change in second.items():
        earlier = result.get(key)
        result[key] = change if earlier is None else Change(earlier.before, change.after)
    return result


def net(windows: Iterable[NetChange[Key, Row]]) -> dict[Key, Change[Row]]:
    """Return the net change of consecutive windows, in log order."""
    result: dict[Key, Change[Row]] = {}
    for window in windows:
        result = compose(result, window)
    return result


@dataclass(frozen=True)
class Towards(Generic[Row]):
    """The change of one key towards X: the row at X, and the row that an exact base has; None: no row."""

    now: Row | None
    was: Row | None


def towards(change: NetChange[Key, Row], *, forward: bool) -> dict[Key, Towards[Row]]:
    """Make the net change of a window free of direction.

    :param forward: whether the window ends at X. Otherwise, it begins at X.
    """
    return {
        key: Towards(now=pair.after, was=pair.before) if forward else Towards(now=pair.before, was=pair.after)
        for key, pair in change.items()
    }


def overlay(forward: Mapping[Key, Towards[Row]], back: Mapping[Key, Towards[Row]]) -> dict[Key, Towards[Row]]:
    """Return the change towards X of rows that were read at times before and after X.

    :param forward: the change of the window that ends at X.
    :param back: the change of the window that begins at X.
    :raises CopyMismatch: the two windows have different rows of one key at X.
    """
    result = {**back, **forward}
    for key in forward.keys() & back.keys():
        if forward[key].now != back[key].now:
            raise CopyMismatch(
                "the last change of a row up to the position of the run contradicts the first change after it",
                hint="trigger a new run; if it recurs, report it with the server's version",
            )
    return result


def bring(rows: Mapping[Key, Row], change: Mapping[Key, Towards[Row]]) -> dict[Key, Row]:
    """Return the rows at X: replace the row of every touched key by the key's ``now``."""
    result = {key: row for key, row in rows.items() if key not in change}
    result.update((key, pair.now) for key, pair in change.items() if pair.now is not None)
    return result


def rewind(rows: Mapping[Key, Row], change: NetChange[Key, Row]) -> dict[Key, Row]:
    """Replace the row of every touched key by the key's ``before``."""
    return bring(rows, towards(change, forward=False))


def roll_forward(rows: Mapping[Key, Row], change: NetChange[Key, Row]) -> dict[Key, Row]:
    """Replace the row of every touched key by the key's ``after``."""
    return bring(rows, towards(change, forward=True))


def net_counts(changes: Iterable[tuple[Row | None, Row | None]]) -> dict[Row, int]:
    """Return the signed multiset of ``(before, after)`` events, without rows whose count is zero."""
    counts: Counter[Row] = Counter()
    for before, after in changes:
        if before is not None:
            counts[before] -= 1
        if after is not None:
            counts[after] += 1
    return {row: count for row, count in counts.items() if count}


def rewind_counts(rows: Mapping[Row, int], counts: Mapping[Row, int]) -> dict[Row, int]:
    """Return the multiset ``rows − counts``. It raises what `bring_counts` does."""
    return bring_counts(rows, {row: -count for row, count in counts.items()})


def bring_counts(rows: Mapping[Row, int], counts: Mapping[Row, int]) -> dict[Row, int]:
    """Return the multiset ``rows + counts``, at X.

    The counts must be the net change of the whole window towards X, because one event after the other could produce
    intermediate counts that never existed.

    :raises CopyMismatch: a count would become negative.
    """
    result = dict(rows)
    for row, count in counts.items():
        remaining = result.pop(row, 0) + count
        if remaining < 0:
            raise CopyMismatch(
                f"according to the log, a row was removed {format_count(-count, 'time')}, but the run read this "
                f"row only {format_count(remaining - count, 'time')}",
                hint="trigger a new run; if it recurs, report it with the server's version",
            )
        if remaining:
            result[row] = remaining
    return result
