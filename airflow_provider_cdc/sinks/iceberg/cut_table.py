"""Cuts. A cut is the set of the copies of all tables of one run, all exact at one position.

Tables are committed one after the other, so a reader of several tables may see new rows of one table and old rows of
another. When all tables are committed, one commit to a small table, ``cdc_cuts``, adds the run's cut: the snapshot of
each table. A reader asks for a cut, and reads each table at the snapshot that the cut names.

The table of cuts has one data file. Each commit replaces this file with a file that has the rows of the earlier cuts
and of the new cut. The commit requires that the table's head is still the one that was read. So two runs can never
commit the same cut number, and no cut is lost.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import BooleanType, LongType, NestedField, StringType, TimestamptzType

from airflow_provider_cdc.core.copies.head import Copy, decode_copy, is_newer
from airflow_provider_cdc.core.parquet.lake_types import FIELD_ID
from airflow_provider_cdc.core.parquet.writer import ParquetWriter
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, PublishIncomplete
from airflow_provider_cdc.sinks.base import LatestCopy, Publication
from airflow_provider_cdc.sinks.iceberg.catalog import (
    COMPLETE,
    commit_unknown,
    folder_of,
    identifier_in,
    load_table,
    make_namespace,
    name_of,
    open_catalog,
    send,
)
from airflow_provider_cdc.sinks.iceberg.commit import COPY, CommittedTable, has_snapshot, property_of
from airflow_provider_cdc.sinks.iceberg.producer import data_file, delete_unnamed, replace_files
from airflow_provider_cdc.sinks.iceberg.table import DATA, RUN_ID
from airflow_provider_cdc.sinks.registry import CUTS_NAMESPACE

if TYPE_CHECKING:
    import polars


NAME = "cdc_cuts"
KEPT = 1000
"""The number of cuts that are kept for each group. Snapshots in older cuts keep their tags."""

GRACE = timedelta(days=1)
"""The longest time for which a reader may use a cut and the files of the table of cuts."""

_PROPERTIES = {"format-version": "2", "write.metadata.delete-after-commit.enabled": "true"}
_EXPIRED_AT = 20
"""The number of old snapshots of the table of cuts that are removed at once."""
_ROUNDS = 20
_RESENDS = 3
_PAUSE_SECONDS = 0.2
_WHAT = "the cut of this run"
_COLUMNS = (
    ("cut", LongType(), pa.int64(), "grows with every cut"),
    ("run_id", StringType(), pa.string(), "the run whose copies these are"),
    ("source", StringType(), pa.string(), "the source, as JSON"),
    ("group", StringType(), pa.string(), "the task group whose runs copy these tables; empty: not known"),
    ("position", StringType(), pa.string(), "the GTID set or LSN that the cut is exact at"),
    ("recorded_at", TimestamptzType(), pa.timestamp("us", "UTC"), "when the run recorded its initial position"),
    (
        "published_at",
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        "when the run committed its decision what to publish",
    ),
    ("table", StringType(), pa.string(), "the source's name of the table: schema.table"),
    ("identifier", StringType(), pa.string(), "the name of the Iceberg table"),
    ("table_uuid", StringType(), pa.string(), "the UUID of the Iceberg table"),
    ("snapshot_id", LongType(), pa.int64(), "the snapshot to read"),
    ("table_position", StringType(), pa.string(), "older than position where the run left the table out"),
    ("rows", LongType(), pa.int64(), "rows of the table"),
    ("schema_id", LongType(), pa.int64(), "the schema of the snapshot"),
    ("history", StringType(), pa.string(), "the history of the source that the copy is of, as JSON"),
    ("digest", StringType(), pa.string(), "the digest of the rows; empty: it is not known"),
    ("latest", BooleanType(), pa.bool_(), "whether no newer copy of the table had been published"),
)
_NULLABLE = ("digest",)


@dataclass(frozen=True)
class CutRow:
    """One table of a cut. The fields are the columns of the table of cuts."""

    run_id: str
    source: str
    group: str
    position: str
    recorded_at: datetime
    published_at: datetime
    table: str
    identifier: str
    table_uuid: str
    snapshot_id: int
    table_position: str
    rows: int
    schema_id: int
    history: str
    cut: int = 0
    digest: str | None = None
    latest: bool = True


@cache
def cuts_schema() -> Schema:
    """Return the Iceberg schema of the table of cuts."""
    return Schema(
        *(
            NestedField(number, name, kind, required=name not in _NULLABLE, doc=doc)
            for number, (name, kind, _, doc) in enumerate(_COLUMNS, 1)
        )
    )


def open_cuts(catalog: Catalog, namespace: str) -> Table:
    """Load the table of cuts. Create the table if it does not exist."""
    identifier = (*namespace.split("."), NAME)
    table = load_table(catalog, identifier)
    if table is None:
        make_namespace(catalog, identifier[:-1])
        try:
            table = catalog.create_table(identifier, cuts_schema(), properties=_PROPERTIES)
        except TableAlreadyExistsError:
            table = catalog.load_table(identifier)
    return table


def find_cuts(catalog: Catalog, namespace: str) -> list[CutRow]:
    """Return the rows of all cuts, the oldest cut first. Without a table of cuts, there are no rows."""
    table = load_table(catalog, (*namespace.split("."), NAME))
    return [] if table is None else rows_of(table)


def rows_of(table: Table) -> list[CutRow]:
    """Return the rows of all cuts in ``table``, the oldest cut first."""
    head = table.metadata.snapshot_by_name("main")
    if head is None:
        return []
    found = table.scan(snapshot_id=head.snapshot_id).to_arrow()
    # Later versions of this package and other programs may add columns.
    rows = found.select([name for name, *_ in _COLUMNS if name in found.schema.names]).to_pylist()
    return sorted((CutRow(**row) for row in rows), key=lambda row: (row.cut, row.table))


def newest_rows(rows: Sequence[CutRow]) -> dict[str, CutRow]:
    """Return the row of the newest copy of each Iceberg table, by the table's identifier."""
    # If a run left a table out, its cut names the table's snapshot from an earlier cut.
    return {row.identifier: row for row in rows if row.latest and row.table_position == row.position}


def copy_in(row: CutRow) -> Copy:
    """Return the copy in a row of a cut, with the fields by which copies are ordered."""
    return Copy(
        run_id=row.run_id,
        position=row.table_position,
        recorded_at=row.recorded_at.isoformat(),
        source=json.loads(row.source),
        history=json.loads(row.history),
    )


def newest_cut(rows: Sequence[CutRow]) -> int | None:
    """Return the number of the cut that is exact at the latest position, or None if ``rows`` has no cut.

    This need not be the cut that was committed last, because a run that began earlier may end later.
    """
    newest: CutRow | None = None
    # The position of a cut is the position of the copies that its run made. If the run made no copy, use the copies
    # that its cut took over from earlier cuts.
    for row in sorted(rows, key=lambda row: (row.cut, row.table_position == row.position)):
        if newest is None or row.cut == newest.cut or is_newer(copy_in(row), copy_in(newest)):
            newest = row
    return None if newest is None else newest.cut


def commit_cut(
    catalog: Catalog,
    namespace: str,
    run_id: str,
    compose: Callable[[Sequence[CutRow]], Sequence[CutRow]],
    known: tuple[Table, Sequence[CutRow]] | None = None,
) -> list[CutRow]:
    """Commit the cut of a run, unless it is already committed, and return the rows of all cuts.

    :param compose: makes the rows of the new cut from the rows of all earlier cuts. It is called again if another cut
        was committed first.
    :param known: the table of cuts as it was a moment ago, and its rows. They are not read again if the table has not
        changed.
    :raises PublishIncomplete: other runs keep committing cuts.
    :raises CommitUnknown: the catalog does not say whether the cut is committed.
    """
    where = f"{namespace}.{NAME}"
    unknown: list[Exception] = []
    for _ in range(_ROUNDS):
        try:
            table = open_cuts(catalog, namespace)
            is_known = known is not None and known[0].metadata_location == table.metadata_location
            existing = [*known[1]] if known is not None and is_known else rows_of(table)
            if any(row.run_id == run_id for row in existing):
                return existing
            number = max((row.cut for row in existing), default=0) + 1
            rows = [replace(row, cut=number) for row in compose(existing)]
            if not rows:
                return existing
            remaining = [*_kept(existing, rows[0].group), *rows]
            updates, requirements = _stage(table, remaining, run_id, number)
        except Exception as error:
            if not unknown:
                raise
            raise commit_unknown(_WHAT, where, error) from unknown[-1]
        try:
            send(catalog, table, requirements, updates)
        except CommitFailedException:
            unknown = []
        except Exception as error:
            # The next iteration of the loop shows whether the commit succeeded. If it failed, the next request requires
            # the same head.
            unknown.append(error)
            if len(unknown) > _RESENDS:
                break
            time.sleep(_PAUSE_SECONDS)
        else:
            _expire(catalog, namespace)
            return remaining
    if unknown:
        raise commit_unknown(_WHAT, where, unknown[-1]) from unknown[-1]
    raise PublishIncomplete("other runs keep committing cuts", where=where, hint=COMPLETE)


def remove_rows(catalog: Catalog, namespace: str, snapshots: Collection[tuple[str, int]]) -> None:
    """Remove snapshots from all cuts, so that no new reader uses them. Each is an Iceberg table's identifier and a
    snapshot id.

    :raises PublishIncomplete: other runs keep committing cuts.
    """
    for _ in range(_ROUNDS):
        table = load_table(catalog, (*namespace.split("."), NAME))
        existing = [] if table is None else rows_of(table)
        remaining = [row for row in existing if (row.identifier, row.snapshot_id) not in snapshots]
        if table is None or len(remaining) == len(existing):
            return
        updates, requirements = _stage(table, remaining, "", existing[-1].cut)
        with suppress(CommitFailedException):
            send(catalog, table, requirements, updates)
            return
    raise PublishIncomplete("other runs keep committing cuts", where=f"{namespace}.{NAME}", hint=COMPLETE)


def _kept(rows: Sequence[CutRow], group: str) -> list[CutRow]:
    numbers = {row.cut for row in rows if row.group == group}
    kept = set(sorted(numbers)[-KEPT + 1 :])
    newest = newest_rows(rows).values()
    return [row for row in rows if row.group != group or row.cut in kept or row in newest]


def _expire(catalog: Catalog, namespace: str) -> None:
    """Remove old snapshots of the table of cuts, and the files that no remaining snapshot names."""
    # The cut is committed, so a failure here must not fail the run. A later cut removes the rest.
    with suppress(Exception):
        table = open_cuts(catalog, namespace)
        before = datetime.now(UTC) - GRACE
        referenced = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.snapshot_id not in referenced and snapshot.timestamp_ms < before.timestamp() * 1000
        ]
        if len(old) < _EXPIRED_AT:
            return
        head = table.metadata.current_snapshot_id
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": head}),
        )
        send(catalog, table, requirements, (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),))
        table = open_cuts(catalog, namespace)
        folder = folder_of(table)
        times = {**folder.times(DATA), **folder.times("metadata")}
        ours = (".parquet", ".avro")
        delete_unnamed(table, [name for name, time in times.items() if time < before and name.endswith(ours)])


def _stage(
    table: Table, rows: Sequence[CutRow], run_id: str, number: int
) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Return the updates and requirements of a commit after which the table has exactly ``rows``."""
    schema = _arrow_schema(table)
    data = pa.table({name: [getattr(row, name) for row in rows] for name in schema.names}, schema)
    writer = ParquetWriter(folder_of(table, DATA), f"cut-{number}-{uuid.uuid4().hex}", schema)
    writer.write(data)
    writer.close()
    location = str(table.location()).rstrip("/")
    uris = {f"{location}/{DATA}/{file.name}": file for file in writer.files}
    wanted: dict[str, DataFile | None] = {uri: data_file(uri, file) for uri, file in uris.items()}
    properties = {"cdc.cut": str(number), **({RUN_ID: run_id} if run_id else {})}
    _, updates, requirements = replace_files(Transaction(table), properties, wanted, "main")
    return updates, (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements)


def _arrow_schema(table: Table) -> pa.Schema:
    """Return the schema of the data files, with the field ids that the catalog assigned."""
    fields = {field.name: field for field in table.schema().fields}
    return pa.schema(
        [
            pa.field(name, kind, name in _NULLABLE, {FIELD_ID: str(fields[name].field_id).encode()})
            for name, _, kind, _ in _COLUMNS
        ]
    )


# Makes the rows of a run's cut: one row for each table, with the snapshot to read.
#
# A cut must not name a snapshot that the catalog does not have. So every table is read again before the cut is
# committed, whatever the catalog answered to the commit of the table.


_READERS = 8

_log = logging.getLogger(__name__)


def rows_of_run(
    catalog: Catalog,
    publication: Publication,
    committed: Sequence[CommittedTable],
    left_out: Collection[str],
    existing: Sequence[CutRow],
) -> list[CutRow]:
    """Return the rows of a run's cut.

    :param committed: the committed tables, in the order of the publication.
    :param left_out: the names of the Iceberg tables that belong to the group but not to this run.
    :param existing: the rows of all earlier cuts.
    :raises PublishIncomplete: the catalog does not have the snapshot of a committed table.
    """
    newest = newest_rows(existing)
    rows = []
    for change, table in zip(publication.tables, committed, strict=True):
        row = CutRow(
            run_id=publication.run_id,
            source=json.dumps(dict(publication.source)),
            group=publication.group,
            position=publication.position,
            recorded_at=_time(publication.recorded_at),
            published_at=_time(publication.published_at),
            table=str(change.table),
            identifier=name_of(table.identifier),
            table_uuid=table.uuid,
            snapshot_id=table.snapshot_id,
            table_position=publication.position,
            rows=change.rows,
            schema_id=table.schema_id,
            history=json.dumps(dict(change.history)),
            digest=change.certificate.get("digest") or None,
        )
        before = newest.get(row.identifier)
        is_latest = before is None or before.table_uuid != row.table_uuid or is_newer(copy_in(row), copy_in(before))
        rows.append(replace(row, latest=is_latest))
    # A table that is left out, such as a shard, may have the name of a merged table that is published.
    others = {*left_out} - {row.identifier for row in rows}
    carried = _carried(publication, others, existing, latest=any(row.latest for row in rows) or not rows)
    lost = _lost(catalog, [*rows, *carried])
    if lost_now := next((row for row in rows if row in lost), None):
        raise PublishIncomplete(
            f"the catalog does not have the snapshot {lost_now.snapshot_id}, which this run committed",
            where=lost_now.identifier,
            hint=COMPLETE,
        )
    for row in lost:
        _log.warning(
            "The cut of this run leaves out %s: the catalog does not have its last copy, the snapshot %d of %s",
            row.table,
            row.snapshot_id,
            row.identifier,
        )
    return [*rows, *(row for row in carried if row not in lost)]


def _lost(catalog: Catalog, rows: Sequence[CutRow]) -> list[CutRow]:
    """Return the rows whose snapshots the catalog does not have."""

    def is_there(row: CutRow) -> bool:
        return has_snapshot(catalog, identifier_in(row.identifier), row.table_uuid, row.snapshot_id)

    with ThreadPoolExecutor(_READERS) as readers:
        return [row for row, there in zip(rows, readers.map(is_there, rows), strict=True) if not there]


def _carried(
    publication: Publication, left_out: Collection[str], existing: Sequence[CutRow], latest: bool
) -> list[CutRow]:
    """Return the rows of the tables that a run leaves out. Each row names the table's newest copy that is not newer
    than the run's cut."""
    run_id, position, group = publication.run_id, publication.position, publication.group
    newest: dict[str, CutRow] = {}
    for row in existing:
        copy = copy_in(row)
        cut = replace(copy, run_id=run_id, position=position, recorded_at=publication.recorded_at)
        is_own = row.table_position == row.position
        if row.identifier not in left_out or not is_own or is_newer(copy, cut):
            continue
        if row.identifier not in newest or is_newer(copy, copy_in(newest[row.identifier])):
            newest[row.identifier] = row
    return [
        replace(row, run_id=run_id, position=position, group=group, latest=latest) for _, row in sorted(newest.items())
    ]


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value if value.tzinfo else value.replace(tzinfo=UTC)


# Reads cuts, for programs that read the tables. Needs PyIceberg, but no Airflow, no Spark and no database.


@dataclass(frozen=True)
class CutTable:
    """One table of a cut.

    :param table: the table's name at the source, ``schema.table``.
    :param identifier: the name of the Iceberg table. A part that contains a dot is in double quotes.
    :param snapshot_id: the snapshot to read.
    :param position: the position at which the table's rows are exact: the cut's position, or an older position if the
        run left the table out.
    :param rows: the number of rows.
    """

    table: str
    identifier: str
    snapshot_id: int
    position: str
    rows: int
    _catalog: Any

    def load(self) -> Table:
        """Load the Iceberg table."""
        table: Table = self._catalog.load_table(identifier_in(self.identifier))
        return table

    def copy(self) -> LatestCopy:
        """Return the record of the copy, without its files.

        :raises ManifestError: the snapshot is gone.
        """
        snapshot = self.load().metadata.snapshot_by_id(self.snapshot_id)
        if snapshot is None:
            raise ManifestError(
                f"the snapshot {self.snapshot_id} is gone",
                where=self.identifier,
                hint="the copy was removed (the option keep), or the table was made again: read a newer cut",
            )
        record = decode_copy(json.loads(property_of(snapshot, COPY)), self.identifier)
        return LatestCopy.of(TableName.parse(self.table), record, record.path, ())

    def arrow_schema(self) -> pa.Schema:
        """Return the columns, with the types of the Iceberg table."""
        schema = self.load().scan(snapshot_id=self.snapshot_id).projection().as_arrow()
        return pa.schema([column.with_type(_with_small_offsets(column.type)) for column in schema])

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return self.load().scan(snapshot_id=self.snapshot_id).to_arrow()

    def to_polars(self) -> polars.LazyFrame:
        """Return the rows as a Polars LazyFrame."""
        import polars

        return polars.scan_iceberg(self.load(), snapshot_id=self.snapshot_id)

    def duckdb(self) -> str:
        """Return the table as DuckDB SQL, for use in ``SELECT … FROM {this}``. DuckDB needs its extension
        ``iceberg``."""
        location = self.load().metadata_location.replace("'", "''")
        return f"iceberg_scan('{location}', snapshot_from_id = {self.snapshot_id})"

    def spark(self, catalog: str) -> str:
        """Return the table as Spark SQL, for use in ``SELECT … FROM {this}``.

        :param catalog: the name of the catalog in Spark's configuration.
        """
        parts = ".".join("`" + part.replace("`", "``") + "`" for part in (catalog, *identifier_in(self.identifier)))
        return f"{parts} VERSION AS OF {self.snapshot_id}"


@dataclass(frozen=True)
class Cut:
    """The copies of all tables of a run, all exact at one position.

    :param number: the number of the cut. Later cuts have greater numbers.
    :param run_id: the id of the run that published the cut.
    :param position: the GTID set or LSN at which the cut is exact.
    :param group: the task group of the run.
    :param source: the source: ``kind``, ``connection``, ``server`` and ``database``. Unknown values are left out.
    :param recorded_at: when the run recorded its initial position.
    :param published_at: when the run decided which files it publishes.
    :param tables: the tables of the cut, by the table's name at the source.
    """

    number: int
    run_id: str
    position: str
    group: str
    source: Mapping[str, str]
    recorded_at: datetime
    published_at: datetime
    tables: Mapping[str, CutTable]

    def __getitem__(self, table: str) -> CutTable:
        """Return one table of the cut.

        :raises KeyError: the cut does not have the table.
        """
        return self.tables[table]

    def dbt_vars(self, tables: Collection[str] = (), *, spark: str = "") -> dict[str, Any]:
        """Return the variables of dbt for the macro ``cdc_table``, which then reads tables of this cut. Pass them as
        JSON in ``dbt run --vars``.

        :param tables: the tables that the models read, by their names at the source. If it is empty, all tables of the
            cut. For dbt on DuckDB, each of these tables is looked up in the catalog.
        :param spark: if dbt runs on Spark, the name of the catalog in Spark's configuration. It is empty if dbt runs on
            DuckDB.
        :raises KeyError: the cut does not have one of ``tables``.
        """
        chosen = [self[table] for table in tables or self.tables]
        sql = {one.table: one.spark(spark) if spark else one.duckdb() for one in chosen}
        return {"cdc_cut": {"run_id": self.run_id, "position": self.position, "tables": sql}}


def read_cut(
    catalog: Catalog | str,
    *,
    namespace: str = CUTS_NAMESPACE,
    group: str | None = None,
    run_id: str | None = None,
    position: str | None = None,
) -> Cut | None:
    """Return the newest cut, or the cut of a given run or position. Return None if there is no such cut.

    :param catalog: a PyIceberg catalog; or the target of the runs, if the catalog is in the target folder.
    :param namespace: the namespace of the table of cuts.
    :param group: the task group of the runs. It may be None if there is only one group.
    :raises ConfigurationError: there are cuts of several groups or sources, and the call does not name one.
    """
    opened = open_catalog(None, Storage(catalog)) if isinstance(catalog, str) else catalog
    rows = find_cuts(opened, namespace)
    wanted = [
        row
        for row in rows
        if (group is None or row.group == group)
        and (run_id is None or row.run_id == run_id)
        and (position is None or row.position == position)
    ]
    groups = sorted({row.group for row in wanted})
    if len(groups) > 1:
        raise ConfigurationError(
            f"there are cuts of {len(groups)} task groups",
            where=f"{namespace}.cdc_cuts",
            hint=f"name one in group: {', '.join(map(repr, groups))}",
        )
    if not wanted:
        return None
    newest = newest_cut(wanted)
    return _cut([row for row in rows if row.cut == newest and row.group == groups[0]], opened)


def _with_small_offsets(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with the offsets that data files have. PyIceberg converts a schema without files to types with
    large offsets."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_with_small_offsets(kind.value_type)))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _cut(rows: list[CutRow], catalog: Catalog) -> Cut:
    first = rows[0]
    return Cut(
        first.cut,
        first.run_id,
        first.position,
        first.group,
        json.loads(first.source),
        first.recorded_at,
        first.published_at,
        {
            row.table: CutTable(row.table, row.identifier, row.snapshot_id, row.table_position, row.rows, catalog)
            for row in rows
        },
    )
