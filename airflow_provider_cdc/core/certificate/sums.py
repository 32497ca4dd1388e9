"""Digests of multisets of rows as values: sums and differences. `digest` computes them from rows."""

from __future__ import annotations

from dataclasses import dataclass

NAME = "rows-1"
"""The name of the definition in `digest`. Another definition must have another name."""
_MODULUS = 1 << 128


@dataclass(frozen=True)
class Digest:
    """The digest of a multiset of rows: their number and the sum of their hashes. A difference of digests may have a
    negative number of rows."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.sum + other.sum) % _MODULUS)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.rows - other.rows, (self.sum - other.sum) % _MODULUS)

    def __mul__(self, times: int) -> Digest:
        return Digest(self.rows * times, self.sum * times % _MODULUS)

    @property
    def hex(self) -> str:
        """The sum as 32 hexadecimal digits."""
        return f"{self.sum:032x}"

    @classmethod
    def of(cls, rows: int, hex: str) -> Digest:
        """Return the digest of ``rows`` rows from its text (`hex`)."""
        return cls(rows, int(hex, 16))
