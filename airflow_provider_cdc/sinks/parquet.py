"""Parquet files: staged under the run's folder, published as ``<target>/<schema>.<table>/snapshot=<run_id>/part-*``.

``<target>/<schema>.<table>/_latest.json`` names the copy to read. It changes only after every file of every table of
the run is in place, and it never goes back to an older position.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.storage_errors import told
from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.errors import FileDamaged, PublishIncomplete, StorageRefused
from airflow_provider_cdc.sinks.base import StagedFile, folder_name
from airflow_provider_cdc.sinks.latest import LATEST, check_source, replace_latest

FILE_BYTES = 128 * 2**20
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 2**20
"""Bounds on what one writer holds in memory: the Arrow bytes of one row group, and the same again encoded."""

COMPRESSION = "snappy"
"""Of all codecs that every reader knows, the one that costs the tasks least."""

_SAMPLE_ROWS = 4096
_PAYS_BELOW = 1 / 8
_MOVERS = 8
_INCOMPLETE = "run the task again: it completes what was begun"
_DAMAGED = "something else than this provider changed it, or the storage lost it: trigger a new run"
_CHECKED_BYTES = 8 * 2**20


class ParquetWriter:
    """Row groups and files of bounded size. A file is rolled after the row group that takes it over ``file_bytes``."""

    def __init__(self, run: Storage, name: str, schema: pa.Schema, file_bytes: int = FILE_BYTES) -> None:
        self.files: list[StagedFile] = []
        self._run = run
        self._name = name
        self._schema = schema
        self._file_bytes = file_bytes
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self._open: _OpenFile | None = None

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        while rows.num_rows:
            # A batch may be larger than a row group may be.
            room = max(1, self._room(rows))
            self._append(rows.slice(0, room))
            rows = rows.slice(room)

    def _room(self, rows: pa.Table) -> int:
        per_row = max(1, int(rows.nbytes) // int(rows.num_rows))
        return min(ROW_GROUP_ROWS - self._rows, (ROW_GROUP_BYTES - self._bytes) // per_row)

    def _append(self, rows: pa.Table) -> None:
        self._pending.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        group = pa.concat_tables(self._pending).cast(self._schema)
        self._pending, self._rows, self._bytes = [], 0, 0
        if self._open is None:
            self._open = _OpenFile(self._run, f"{self._name}-{len(self.files)}.parquet", group)
        self._open.write(group)
        if self._open.size >= self._file_bytes:
            self._roll()

    def _roll(self) -> None:
        if self._open is not None:
            self.files.append(self._open.close())
            self._open = None

    def close(self) -> None:
        self._flush()
        self._roll()
        if self.files:
            # The names are durable once their folder is.
            self._run.sync(self._name.rpartition("/")[0])

    def abort(self) -> None:
        self._pending = []
        if self._open is not None:
            self._open.abort()


class _OpenFile:
    def __init__(self, run: Storage, name: str, first: pa.Table) -> None:
        self._run = run
        self._name = name
        self._rows = 0
        run.make_folder(name.rpartition("/")[0])
        self._stream = _Checked(run.filesystem.open_output_stream(run.path(name)))
        # Trying a dictionary on every column and giving it up on most takes three times as long as all the rest.
        self._writer = pq.ParquetWriter(
            self._stream, first.schema, compression=COMPRESSION, use_dictionary=_repetitive(first)
        )

    @property
    def size(self) -> int:
        return self._stream.size

    def write(self, group: pa.Table) -> None:
        self._writer.write_table(group, row_group_size=group.num_rows)
        self._rows += group.num_rows

    def close(self) -> StagedFile:
        self._writer.close()
        self._stream.close()
        self._run.sync(self._name)
        return StagedFile(self._name, self._rows, self.size, self._stream.checksum)

    def abort(self) -> None:
        """Leave nothing behind if that is possible; the error that led here is the one that matters."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
            self._run.delete_file(self._name)


class _Checked:
    """A stream that knows the size and the checksum of what was written to it, for that is what should be there.

    CRC-32 finds all damage but one in four thousand million, and costs a hundredth of what writing Parquet does.
    """

    def __init__(self, stream: Any) -> None:
        self.size = 0
        self._crc = 0
        self._stream = stream

    @property
    def checksum(self) -> str:
        return f"{self._crc:08x}"

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._stream.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.size += size
        return size

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _repetitive(rows: pa.Table) -> list[str]:
    """The columns whose values repeat so often that a dictionary pays."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    return [
        field.name
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if pa.types.is_dictionary(field.type)
        or (_is_plain(field.type) and pc.count_distinct(column).as_py() < sample.num_rows * _PAYS_BELOW)
    ]


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type can be counted, and a dictionary of them could be smaller."""
    return not (pa.types.is_boolean(kind) or pa.types.is_nested(kind))


class ParquetSink:
    """The lake folder ``target``."""

    def __init__(self, target: Storage) -> None:
        self.target = target

    @contextmanager
    def writer(self, run: Storage, name: str, schema: pa.Schema) -> Iterator[ParquetWriter]:
        writer = ParquetWriter(run, name, schema)
        try:
            # What the caller reads its rows from has errors of its own kind.
            with told(run.uri_of(name)):
                yield writer
                writer.close()
        except BaseException:
            writer.abort()
            raise

    def write_empty(self, run: Storage, name: str, schema: pa.Schema) -> StagedFile:
        """A file without rows, which shows readers the schema of a table that has none. ``name`` begins its name."""
        folder, _, base_name = name.rpartition("/")
        staged = _OpenFile(run, f"{folder}/{base_name}-{token()}.parquet", schema.empty_table()).close()
        run.sync(folder)
        return staged

    def place(self, run: Storage, table: TableName, run_id: str, files: Sequence[StagedFile]) -> str:
        folder = place_of(table, run_id)
        try:
            self._place(run, folder, files)
        except (OSError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"a file could not be put in place: {error}", where=self.target.uri_of(folder), hint=_INCOMPLETE
            ) from error
        return self.target.uri_of(folder)

    def _place(self, run: Storage, folder: str, files: Sequence[StagedFile]) -> None:
        self.target.make_folder(folder)
        wanted = {f"{folder}/{file.base_name}": file for file in files}
        present = self.target.sizes(folder)

        def move(name: str) -> None:
            try:
                run.move_to(wanted[name].name, self.target, name)
            except (OSError, pa.ArrowException):
                # Another try that publishes the same commit may have been quicker.
                if not self.target.exists(name) and run.exists(wanted[name].name):
                    raise

        # In an object store a move copies the file, and waits for the store.
        with ThreadPoolExecutor(_MOVERS) as movers:
            list(movers.map(move, wanted.keys() - present.keys()))
        self.target.sync(folder)
        present = self.target.sizes(folder)
        for name, file in wanted.items():
            if present.get(name) != file.bytes:
                what = f"has {present[name]} bytes, not {file.bytes}" if name in present else "is gone"
                raise FileDamaged(
                    f"the file {file.base_name} of this copy {what}", where=self.target.uri_of(folder), hint=_DAMAGED
                )
        # What begins with _ or . is invisible to readers.
        strange = [
            name
            for name in present.keys() - wanted.keys()
            if name.rpartition("/")[2].lstrip("_.") == name.rpartition("/")[2]
        ]
        if strange:
            raise FileDamaged(
                f"the folder of this copy holds files that are not of it: {', '.join(sorted(strange)[:5])}",
                where=self.target.uri_of(folder),
                hint="find out who wrote them, remove them, and clear the task",
            )

    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: str) -> None:
        def check(table: TableName) -> None:
            check_source(self.target, folder_name(table), source, position)

        # Each one waits for the store.
        with ThreadPoolExecutor(_MOVERS) as checkers:
            list(checkers.map(check, tables))

    def check(self, folders: Sequence[tuple[Storage, str]], file: StagedFile) -> str:
        found = ""
        for storage, name in folders:
            try:
                found = _difference(storage, name, file)
            except FileNotFoundError:
                found = "it is gone"
            if not found:
                break
        return found

    def announce(self, table: TableName, latest: Mapping[str, Any]) -> bool:
        folder = folder_name(table)
        try:
            return replace_latest(self.target, folder, latest)
        except (StorageRefused, FileNotFoundError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"the latest copy could not be announced: {error}",
                where=self.target.uri_of(f"{folder}/{LATEST}"),
                hint=_INCOMPLETE,
            ) from error


def token() -> str:
    """What makes a file's name one that no other try writes."""
    return uuid.uuid4().hex[:16]


def place_of(table: TableName, run_id: str) -> str:
    """The folder of one copy of a table, relative to the target."""
    return f"{folder_name(table)}/snapshot={run_id}"


def _difference(storage: Storage, name: str, file: StagedFile) -> str:
    crc = size = 0
    with told(storage.uri_of(name)):
        with storage.filesystem.open_input_stream(storage.path(name), buffer_size=0) as stream:
            while block := stream.read(_CHECKED_BYTES):
                crc = zlib.crc32(block, crc)
                size += len(block)
        if size != file.bytes:
            return f"it has {size} bytes, not {file.bytes}"
        if f"{crc:08x}" != file.checksum:
            return f"its checksum is {crc:08x}, not {file.checksum}"
        try:
            rows = pq.read_metadata(storage.path(name), filesystem=storage.filesystem).num_rows
        except pa.ArrowException as error:
            return f"it is no Parquet file: {error}"
    return "" if rows == file.rows else f"it has {rows} rows, not {file.rows}"
