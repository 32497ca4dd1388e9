"""PostgreSQL positions. A position is a log sequence number (LSN), which is a byte offset in the write-ahead log.

The text form is the same as for the type `pg_lsn` (https://www.postgresql.org/docs/current/datatype-pg-lsn.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.errors import PositionError

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
