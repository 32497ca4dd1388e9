"""The totals of a certificate, for one file, one copy and one key range"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_cdc.core.parquet.writer import StagedFile


# Digests of multisets of rows as values: sums and differences. `digest` computes them from rows.


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


# Digests of the rows of files, and of copies, which are sets of files.


def live_digest(file: StagedFile) -> Digest | None:
    """Return the digest of the rows of a file that are not deleted; None: it is not known."""
    if not file.digest:
        return None
    whole = Digest.of(file.rows, file.digest)
    if file.deletes is None:
        return whole
    return whole - Digest.of(file.deletes.rows, file.deletes.digest) if file.deletes.digest else None


def total_of(files: Iterable[StagedFile]) -> Digest | None:
    """Return the digest of the rows of a copy; None: the digest of a file is not known."""
    total = Digest()
    for file in files:
        digest = live_digest(file)
        if digest is None:
            return None
        total += digest
    return total


def with_more(deletes: StagedFile | None, newly: Digest) -> str:
    """Return the digest of deleted rows, after the rows ``newly`` were deleted, too; empty: it is not known.

    :param deletes: the file with the rows that were deleted before; None: there are none.
    """
    if deletes is None:
        return newly.hex
    return (Digest.of(deletes.rows, deletes.digest) + newly).hex if deletes.digest else ""


def with_changes(file: StagedFile, removed: Digest, added: Digest) -> str:
    """Return the digest of a file's rows, after some rows were replaced; empty: it is not known."""
    return (Digest.of(file.rows, file.digest) - removed + added).hex if file.digest else ""
