"""Decides which finished parts of an earlier try count, and at which positions a keyless table was read.

All rows of a keyless table must be of one exact position, because no key tells to which row a change belongs. There is
one exception: a table that is divided by values. Each of its ranges may be of a position of its own
(docs/design/resume.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.jobs.snapshot.read_part import PartRecord
from airflow_provider_cdc.jobs.snapshot.survivors import OddRow
from airflow_provider_cdc.jobs.snapshot.table_files import TableFiles, Unit

LARGE_BYTES = 2**30
"""The size of a table from which on a message tells that it counts only as a whole."""


def tell_wholes(tables: Sequence[RunTable], parts: Sequence[Part]) -> None:
    """Name the large tables of which nothing is kept if the step is killed before they are read in full."""
    divided = {part.table for part in parts if part.within is not None}
    for index, entry in enumerate(tables):
        table = entry.table
        if entry.live and table.keyless and index not in divided and table.bytes >= LARGE_BYTES:
            say(
                f"snapshot: {table.name} has {table.bytes / 2**30:.1f} GiB, no key, and no indexed column by which it "
                "can be divided: if this attempt is killed, it is kept only if it was read in full"
            )


def drop_half_read(tables: Sequence[RunTable], parts: Sequence[Part], done: dict[int, PartRecord]) -> None:
    """Drop the records of tables that need one exact position and were not read in full, because the next try has
    another position. The ranges of a table that is divided by values count one by one."""
    uppers: dict[int, set[str | None]] = defaultdict(set)
    for part in parts:
        uppers[part.table].add(done[part.number].upper if part.number in done else None)
    for part in parts:
        if tables[part.table].table.needs_one_position and part.within is None and len(uppers[part.table]) > 1:
            done.pop(part.number, None)


def files_by_table(
    tables: Sequence[RunTable], parts: Sequence[Part], done: Mapping[int, PartRecord]
) -> dict[str, TableFiles]:
    """Return the files of each table, by name. A part without a record belongs to a table that was altered, so it is
    read again under another manifest."""
    read: dict[int, list[Part]] = {index: [] for index in range(len(tables))}
    for part in sorted(parts, key=lambda part: (part.table, part.chunks[0].number)):
        if part.number in done:
            read[part.table].append(part)
    return {str(tables[index].table.name): _files(tables[index], own, done) for index, own in read.items()}


def _files(entry: RunTable, parts: Sequence[Part], done: Mapping[int, PartRecord]) -> TableFiles:
    files: list[StagedFile] = []
    odd: list[OddRow] = []
    uppers: set[str] = set()
    for part in parts:
        record = done[part.number]
        files += record.files
        odd += record.odd
        uppers.add(record.upper)
    if not entry.table.needs_one_position or not parts:
        return TableFiles(tuple(files), "", tuple(odd))
    if len(uppers) == 1:
        return TableFiles(tuple(files), uppers.pop(), tuple(odd))
    units = tuple(Unit(part.within, done[part.number].upper) for part in parts if part.within is not None)
    return TableFiles(tuple(files), "", tuple(odd), units)
