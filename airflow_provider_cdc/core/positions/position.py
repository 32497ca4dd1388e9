"""What all kinds of positions have in common, and the text of a place in a log."""

from __future__ import annotations

from typing import NewType, Self

from airflow_provider_cdc.errors import PositionError

LogEnd = NewType("LogEnd", str)
"""The place in a log up to which a run's window is read, in the source's own notation: a file and an offset (MySQL), or
an LSN and a mark before it (PostgreSQL). Only the source that made it reads it, so everybody else keeps its text."""


class Position:
    """A point in a source's history: ``a <= b`` says that ``b`` has all of ``a``. Immutable, hashable and picklable.

    Positions of different kinds do not compare: ``<=`` raises `TypeError`.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` writes, and what a user or a server may write instead.

        :raises PositionError: ``text`` is no position of this kind.
        """
        raise NotImplementedError

    @classmethod
    def expect(cls, position: Position) -> Self:
        """Return ``position``, which has to be of this kind.

        Jobs and operators pass on positions of any kind; each source calls this where it takes one of its own.

        :raises PositionError: the position is of another kind of source.
        """
        if not isinstance(position, cls):
            raise PositionError(
                f"{str(position)[:200]} is a position of another kind of source",
                hint="correct the connection, or trigger a new run",
            )
        return position

    def __le__(self, other: Self) -> bool:
        raise NotImplementedError

    def shortfall(self, wanted: Self) -> str:
        """Return what this position lacks of ``wanted``, in words; empty: nothing."""
        raise NotImplementedError
