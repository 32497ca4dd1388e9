"""What a sink can do, whatever the format of the lake.

Tasks on any machine *stage* files with `Sink.writer`: nobody reads them yet, and a task that fails or runs twice leaves
files behind that nobody names. The driver then fixes one set of files per table in the run's commit, of which there is
only ever one, and publishes these in two moves: `Sink.place` puts the files where they will stay, `Sink.announce` makes
them the table's latest copy. Both may be repeated after a crash, or done by several tries at once: what they do follows
from the commit alone, so they complete what another call began and never undo it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.errors import FileDamaged


@dataclass(frozen=True)
class StagedFile:
    """A finished file that is not published. ``name`` is relative to the run's folder, ``bytes`` is its size there, and
    ``checksum`` that of its content. No other try writes a file of this name."""

    name: str
    rows: int
    bytes: int
    checksum: str

    @property
    def base_name(self) -> str:
        return self.name.rpartition("/")[2]


class StagedWriter(Protocol):
    """Writes rows of one table to files of bounded size, with bounded memory."""

    @property
    def files(self) -> list[StagedFile]:
        """The files; complete once the writer is closed, and empty if there were no rows. They survive a crash then."""

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows of the table's schema."""


class Sink(Protocol):
    """One lake folder, as the jobs use it."""

    def writer(self, run: Storage, name: str, schema: pa.Schema) -> AbstractContextManager[StagedWriter]:
        """Stage rows in files whose names begin with ``name``. On an error, nothing that was written counts."""

    def place(self, run: Storage, table: TableName, run_id: str, files: Sequence[StagedFile]) -> str:
        """Put the files of one table where readers will find them, and return the URI of that place.

        The place holds these files and no others then. No file that is there is ever touched.

        :param files: those that the run's commit names; nothing else may ever be placed for this run.
        :raises PublishIncomplete: it stopped half-way; call it again.
        :raises FileDamaged: a file is gone or cut short, or the place holds other files, so calling it again cannot
            help.
        """

    def check(self, folders: Sequence[tuple[Storage, str]], file: StagedFile) -> str:
        """Read a file from its first to its last byte, and say how it differs from its record; empty if it does not.

        :param folders: the folders where it may lie, each with its name there. Meanwhile it may be moved from one to
            the next.
        """

    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: str) -> None:
        """Make sure that the copies of ``tables`` that are there are of ``source``, which has all of ``position``.

        :raises ConfigurationError: they are another source's.
        """

    def announce(self, table: TableName, latest: Mapping[str, Any]) -> bool:
        """Make ``latest`` the table's latest copy, unless one at a newer position is; say whether it is now.

        :param latest: what readers are told: ``run_id``, ``path``, the initial position, ``position`` (what the copy is
            exact at), ``recorded_at``, ``source``, ``rows``, ``published_at``.
        :raises ConfigurationError: the copy that is there is another source's.
        :raises PublishIncomplete: it stopped half-way; call it again.
        """


@contextmanager
def gone_is_damaged(run: Storage) -> Iterator[None]:
    """Files were seen to be whole before they are worked on. If one is not there any more no retry can help: another
    try may have moved it, and whoever hears of it looks for that one.

    :raises FileDamaged: in place of what a missing file leads to.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileDamaged(
            f"a file is gone: {error}", where=run.uri, hint="somebody removed it: trigger a new run"
        ) from error


NAME_BYTES = 255
"""What file systems take as one part of a path."""


def folder_name(table: TableName) -> str:
    """``schema.table``, safe in every file system, in URIs and in Hadoop paths, and different for different tables.

    Bytes other than ASCII letters, digits, ``_ - $`` are written as ``~`` and two hexadecimal digits. What is longer
    than a file system takes ends in ``~~`` and a digest of the whole name, which no other name does.
    """
    name = f"{safe_name(table.schema)}.{safe_name(table.name)}"
    if len(name) <= NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    # No half of a ~XX is left.
    kept = re.sub(r"~.?$", "", name[: NAME_BYTES - len(digest) - 2])
    return f"{kept}~~{digest}"


def safe_name(name: str) -> str:
    """``name`` in ASCII letters, digits, ``_ - $``; other bytes as ``~`` and two hexadecimal digits."""
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-$") else f"~{byte:02X}"
        for byte in name.encode()
    )
