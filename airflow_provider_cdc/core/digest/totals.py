"""Digests of multisets of rows as values, and the facts about copies that a commit records for their certificates."""

from __future__ import annotations

from dataclasses import dataclass, field

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


# What consolidate found out about the copies that it staged, for their certificates. These records are part of the
# commit.


@dataclass(frozen=True)
class CertificateColumn:
    """A published column, with its Arrow type as text."""

    name: str
    type: str


@dataclass(frozen=True)
class Counted:
    """The number of some rows, and their digest (`Digest.hex`)."""

    rows: int
    digest: str


@dataclass(frozen=True)
class Derivation:
    """The digest of a copy that was rolled forward, derived from its base and the log.

    ``base`` has the rows of the base, ``removed`` and ``added`` the rows that the log removes and adds. If
    ``impossible`` is not empty, it says why nothing could be derived.
    """

    base_run_id: str
    base: Counted | None = None
    removed: Counted | None = None
    added: Counted | None = None
    impossible: str = ""


@dataclass(frozen=True)
class CheckedFile:
    """When a file of a copy was last known to be whole: it was written, or it was ``checked``, at the time ``at`` (ISO
    8601)."""

    at: str
    checked: bool = False


@dataclass(frozen=True)
class Proof:
    """The facts about one table's copy. ``seen`` has the files that it takes over from its base, by their names.
    ``scrubbed`` and ``scrubbed_bytes`` count the files that this run checked."""

    columns: tuple[CertificateColumn, ...] = ()
    derivation: Derivation | None = None
    seen: dict[str, CheckedFile] = field(default_factory=dict)
    scrubbed: int = 0
    scrubbed_bytes: int = 0
