"""Digests of the rows of files, and of copies, which are sets of files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.certificate.sums import Digest

if TYPE_CHECKING:
    from airflow_provider_cdc.core.parquet.writer import StagedFile


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
