"""The rows that the snapshot step read: their files by table, and the rows with values that no Arrow type holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.unrepresentable import MOST, OddValue, naming_key
from airflow_provider_cdc.sources.api.window import UpperBound

# Values that no Arrow type holds (odd values), in rows that the rewind may remove.
#
# The reading tasks write a placeholder for each odd value, and record the key of its row. If the window touches the
# row, the rewind removes the row, and decodes the row's *before* by the rules in `rewind`. The other rows survive,
# and would be published with the placeholder. So the surviving rows stop the run, with one error for all of these
# rows.


_SHOWN = 5
"""The largest number of columns that a message names."""


@dataclass(frozen=True)
class OddRow:
    """A row with an odd value, in a part's record: its key, the column (``where``), and the error's message and hint.

    ``key`` is the key as `core.tables.row_bytes` encodes it, in hexadecimal digits.
    """

    key: str
    where: str
    message: str
    hint: str


def noted(table: Table, batch: pa.RecordBatch, odd: Sequence[OddValue]) -> list[OddRow]:
    """Return the entries of a part's record for the odd values of one batch."""
    # More than `MOST` odd values stop the part, so further odd values need no entry. Keys have no odd values.
    odd = odd[: MOST + 1]
    keys = row_bytes.encode(batch.take(pa.array([value.row for value in odd], pa.int64())), list(table.key))
    return [
        OddRow(key.as_py().hex(), error.where, error.message, error.hint)
        for key, error in zip(keys, (naming_key(table, batch, [value], value) for value in odd), strict=True)
    ]


def check_count(found: Sequence[OddRow]) -> None:
    """Stop a part if it has so many odd values that the window is unlikely to touch all of their rows.

    :raises ValueNotRepresentable: there are more than `MOST` odd values.
    """
    if len(found) > MOST:
        raise _error(found)


def check_remaining(run: Storage, change: Sequence[StagedFile], odd: Mapping[int, Sequence[OddRow]]) -> None:
    """Check that the window touches every row with an odd value.

    :param change: the files of the window's net change.
    :param odd: the results of `noted`, by the table's index.
    :raises ValueNotRepresentable: some of these rows survive. The message names the columns with odd values.
    """
    untouched = [value for index, values in odd.items() for value in _untouched(run, change, index, values)]
    if untouched:
        raise _error(untouched)


def surviving(run: Storage, change: Sequence[StagedFile], odd: Mapping[int, Sequence[OddRow]]) -> dict[int, str]:
    """Return, by the table's index, why each table with a surviving row cannot be copied. The arguments are the same as
    for `check_remaining`."""
    untouched = {index: list(_untouched(run, change, index, values)) for index, values in odd.items()}
    return {index: reason(_error(values)) for index, values in untouched.items() if values}


def _untouched(run: Storage, change: Sequence[StagedFile], index: int, values: Sequence[OddRow]) -> Iterable[OddRow]:
    keys = pa.array([bytes.fromhex(value.key) for value in values], pa.binary())
    touched = pa.array([False] * len(values))
    for batch in net_change_files.read(run, change, ["key"], table=index):
        touched = pc.or_(touched, pc.is_in(keys, value_set=batch["key"]))
    return [value for value, gone in zip(values, touched.to_pylist(), strict=True) if not gone]


def _error(values: Sequence[OddRow]) -> ValueNotRepresentable:
    by_column: dict[str, list[OddRow]] = {}
    for value in values:
        by_column.setdefault(value.where, []).append(value)
    first = values[0]
    messages = [
        f"{odd_values[0].message} ({format_count(len(odd_values), 'such row')} read)"
        for odd_values in by_column.values()
    ]
    if len(by_column) == 1:
        return ValueNotRepresentable(messages[0], where=first.where, hint=first.hint)
    shown = "; ".join(f"{where}: {what}" for where, what in list(zip(by_column, messages, strict=True))[:_SHOWN])
    more = f"; and {format_count(len(by_column) - _SHOWN, 'more column')}" if len(by_column) > _SHOWN else ""
    return ValueNotRepresentable(
        f"{shown}{more}", where=f"{len(by_column)} columns", hint=f"for each of them: {first.hint}"
    )


_RECORD = "chunks/files"
"""The prefix of the names of the records with these files."""


@dataclass(frozen=True)
class Unit:
    """A range of a keyless table, and the exact position of its read, as text."""

    within: ValueRange
    upper: str


@dataclass(frozen=True)
class ReadFiles:
    """The files with the rows that were read from one table. ``upper`` is the exact position of the read, as text;
    empty: the table does not need an exact position, or its ranges were read at several positions (``units``). ``odd``
    are the rows with values that no Arrow type holds (`unrepresentable_rows`). ``ended`` is an end of the log after the
    end of the read (`EndsOfReads`). Empty: unknown."""

    files: tuple[StagedFile, ...]
    upper: str
    odd: tuple[OddRow, ...] = ()
    units: tuple[Unit, ...] = ()
    ended: str = ""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def read_table_files(run: Run) -> dict[str, ReadFiles]:
    """Return the files of the tables that were read, by table.

    :raises ManifestError: the step is not done.
    """
    return read_record(run, run.result_of(SnapshotResult).record)


def write_record(run: Run, files: Mapping[str, ReadFiles]) -> str:
    """Record the files of tables, by name. Return the name of the record."""
    return records.write_named(run.folder, _RECORD, dict(files))


def read_record(run: Run, name: str) -> dict[str, ReadFiles]:
    """Return the files in the record ``name``, by table."""
    return records.read_named(dict[str, ReadFiles], run.folder, name)


# The finished reads of tables that the run has kept when it moved.


def files_of_bases(step: Step) -> dict[str, ReadFiles]:
    """Return the files of the tables that were read before the run moved to its present position."""
    bases = {str(entry.table.name): entry.basis for entry in step.tables if entry.basis is not None}
    read = {name: read_record(step.run, name) for name in {basis.record for basis in bases.values()}}
    return {name: read[basis.record][name] for name, basis in bases.items()}


def nulled_of_bases(step: Step) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the number of values of each column that these reads turned into null, by table."""
    yield from ((str(entry.table.name), entry.basis.nulled) for entry in step.tables if entry.basis is not None)


def undone(step: Step, bound: UpperBound | None = None) -> dict[str, str]:
    """Return the tables whose finished reads a restart of the server may have undone, each with the reason.

    :param bound: the bound of the reads under the present manifest. None: nothing was read under this manifest.
    """
    bases = {str(entry.table.name): entry.basis for entry in step.tables if entry.basis is not None}
    if not bases:
        return {}
    bound = bound or retry("snapshot: check the earlier reads", step.source.bound_reads)
    lost = [name for name, basis in bases.items() if basis.incarnation != bound.incarnation]
    return dict.fromkeys(lost, "the server restarted after the table was read")


def with_ends(step: Step, read: Mapping[str, ReadFiles]) -> dict[str, ReadFiles]:
    """Return the files of the tables, by name, each with the noted end."""
    return {name: replace(files, ended=step.ends.get(name, "")) for name, files in read.items()}
