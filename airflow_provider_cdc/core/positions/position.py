"""The base class of all positions, and the text of a place in a log."""

from __future__ import annotations

from typing import NewType, Self

from airflow_provider_cdc.errors import PositionError

LogEnd = NewType("LogEnd", str)
"""The place in a log up to which a run's window is read, in the source's own notation: a file and an offset (MySQL), or
an LSN and a mark before it (PostgreSQL). Only the source parses it; all other code treats it as opaque text."""


class Position:
    """A point in a source's history. ``a <= b`` means that ``b`` includes all of ``a``. Immutable, hashable, picklable.

    Positions of different kinds cannot be compared: ``<=`` raises `TypeError`.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a position: the result of ``str``, or another form that users and servers write.

        :raises PositionError: ``text`` is not a position of this kind.
        """
        raise NotImplementedError

    @classmethod
    def expect(cls, position: Position) -> Self:
        """Return ``position``, which must be of this kind.

        Jobs and operators pass positions of any kind. Each source calls this method where it needs a position of its
        own kind.

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
        """Describe the part of ``wanted`` that this position lacks; empty: it lacks nothing."""
        raise NotImplementedError
