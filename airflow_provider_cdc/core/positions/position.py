"""The base class of all positions, and the text of a place in a log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
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


# PostgreSQL positions. A position is a log sequence number (LSN), which is a byte offset in the write-ahead log.
#
# The text form is the same as for the type `pg_lsn` (https://www.postgresql.org/docs/current/datatype-pg-lsn.html).


_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@total_ordering
@dataclass(frozen=True, slots=True, repr=False)
class Lsn(Position):
    """A position in the write-ahead log: `value` is a count of bytes, from 0 to 2^64 - 1.

    Positions are ordered, `int(lsn)` is the value, and the difference of two positions is a number of bytes. Raises
    `PositionError` for a value outside 64 bits.
    """

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 2**64:
            raise PositionError(f"{self.value} is not an LSN", hint="give a number of bytes from 0 to 2^64 - 1")

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parse `X/Y`. X and Y are hexadecimal numbers of up to 8 digits, in upper or lower case. X is the high 32
        bits, and Y is the low 32 bits.

        Raises `PositionError` if `text` is not an LSN.
        """
        halves = _LSN.fullmatch(text)
        if halves is None:
            raise PositionError(
                f"not an LSN: {text[:80]!r}",
                hint="write it as SELECT pg_current_wal_lsn() prints it, like 16/B374D848",
            )
        return cls(int(halves[1], 16) << 32 | int(halves[2], 16))

    def __le__(self, other: Lsn) -> bool:
        return self.value <= other.value if isinstance(other, Lsn) else NotImplemented

    def __int__(self) -> int:
        return self.value

    def __sub__(self, other: Lsn) -> int:
        """Return the number of bytes of log from `other` to this position. It is negative if this position is
        earlier."""
        return self.value - other.value

    def shortfall(self, wanted: Lsn) -> str:
        """Describe that this position does not reach ``wanted``; empty: it reaches ``wanted``."""
        return "" if self >= wanted else f"it is exact at {self}"

    def __str__(self) -> str:
        """Return the canonical form, without leading zeros, as PostgreSQL up to 18 prints it."""
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn.parse({str(self)!r})"
