"""The protocol that every sink implements, and the records that sinks take and return. A sink publishes copies in a
lake in one format.

The run's single commit determines which files are published. `Sink.publish` publishes all tables of the commit in one
call. The call may be repeated after a crash, and several tries may call it at the same time. The effect of a call
depends on the commit alone, so each call completes the work of earlier calls and never undoes it. Sinks are registered
in `sinks.registry`. ``tests/sinks/test_contract.py`` tests each registered sink against this contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider_cdc.core.copies.head import Copy, position_of
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.commit_record import Feed
from airflow_provider_cdc.core.run.manifest import FeedGap, Place
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import PLAIN, Layout, TableName

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableChange:
    """The files of one table's copy, and the facts that the copy's record gives to readers.

    ``added`` are files in the run's staging folder. ``kept`` are files that this copy shares with the copy of the run
    ``base``; their names have no folder. If ``base`` is empty, their names are relative to the lake. ``where`` and
    ``columns`` describe a copy of a part of the table, as in `Selection`. ``feed`` has the changes since the copy of
    ``base``; None: the changes are not published. ``history`` is the result of `Manifest.history_of`. ``place`` is the
    result of `Sink.prepare`; if it is not None, the files are already at their final place. ``certificate`` is the JSON
    data of the copy's certificate (`core.certificate`); empty: it has none. ``shards`` has the names of the
    files of each shard, by the shard's name; empty: the table is not merged. ``feed_gap`` is set if no changes lead to
    the copy, although the run publishes changes and the table has an earlier copy.
    """

    table: TableName
    added: tuple[StagedFile, ...]
    kept: tuple[StagedFile, ...] = ()
    base: str = ""
    where: str = ""
    columns: tuple[str, ...] = ()
    feed: Feed | None = None
    history: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[str, frozenset[str]] = field(default_factory=dict)
    feed_gap: FeedGap | None = None

    @property
    def rows(self) -> int:
        return sum(file.live_rows for file in (*self.added, *self.kept))

    @property
    def shard_records(self) -> tuple[dict[str, Any], ...]:
        """The shards, as the copy's record names them."""
        rows = {file.base_name: file.live_rows for file in (*self.added, *self.kept)}
        return tuple(
            {"shard": shard, "rows": sum(rows[name] for name in names)} for shard, names in sorted(self.shards.items())
        )


@dataclass(frozen=True)
class Publication:
    """A publication of a run. It has the tables of the run's commit, and values for the records that readers see.

    All copies are exact at ``position``, which was recorded at ``recorded_at``. ``position_key`` is the name of the
    position in records of this kind of source. ``source`` is the result of `core.positions.facts.source_of`. ``as_of``
    is the time or position that was requested; empty: the present. ``missed_as_of`` is `Manifest.missed_as_of`.
    ``group`` names the task group of the run; all runs of a group copy the same tables. ``skipped`` are tables of the
    group that this run leaves out. Times are ISO 8601. If the copies have shards of several sources, ``positions`` has
    the position of each source (`core.shards.copy_tables`), and ``position`` is empty.
    """

    run_id: str
    staging: Staging
    tables: tuple[TableChange, ...]
    position_key: str
    position: str
    recorded_at: str
    published_at: str
    source: Mapping[str, str]
    as_of: str = ""
    missed_as_of: str = ""
    group: str = ""
    skipped: tuple[TableName, ...] = ()
    positions: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class PublishedCopy:
    """The URI of one table's published copy, and whether it is now the table's latest copy."""

    uri: str
    is_latest: bool


@dataclass(frozen=True)
class LatestCopy:
    """The latest copy of one table, as the API returns it to readers.

    :param table: ``schema.table``.
    :param run_id: the id of the run that published the copy.
    :param path: URI of the folder of the run's copy.
    :param files: URIs of all files of the copy, sorted. Read exactly these files, even if they are in different
        folders. Empty: the copy is a snapshot of an Iceberg table with position deletes. Only readers of Iceberg tables
        leave out the deleted rows; see `airflow_provider_cdc.lake.read_cut`.
    :param rows: the number of rows in these files.
    :param position: the GTID set or LSN at which the copy is exact.
    :param as_of: the time or position that was requested for the run; empty: the present at the time of the run.
    :param recorded_at: when the run recorded its position: ISO 8601.
    :param published_at: when the copy was published: ISO 8601.
    :param source: the source of the copy: ``kind``, ``connection``, ``server`` and ``database``. Unknown values are
        left out.
    :param where: the condition that the copied rows fulfil; empty: the copy has all rows.
    :param columns: the columns that were requested in addition to the key columns; empty: the copy has all columns.
    :param missed_as_of: the end of the data interval, if a nightly run should have been exact at that time but could
        not be; otherwise empty.
    :param history: the history of the source to which the copy belongs (``id``, ``number``), and the histories that
        ended before this one (``superseded``); empty: the record has no history.
    :param shards: the shards of a merged table, each with its name (``shard``) and ``rows``; empty: it is not merged.
    :param positions: the positions of a merged table with shards of several sources: for each source its connection
        (``source``), ``run_id`` and ``position``. ``position`` is then empty.
    :param feed_gap: if the changes of the table begin anew at this copy: the earlier copy at which they ended
        (``from_run_id``, ``from``), and the ``reason``; otherwise empty.
    """

    table: str
    run_id: str
    path: str
    files: tuple[str, ...]
    rows: int
    position: str
    as_of: str
    recorded_at: str
    published_at: str
    source: Mapping[str, str]
    where: str = ""
    columns: tuple[str, ...] = ()
    history: Mapping[str, Any] = field(default_factory=dict)
    missed_as_of: str = ""
    shards: tuple[Mapping[str, Any], ...] = ()
    positions: tuple[Mapping[str, Any], ...] = ()
    feed_gap: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, table: TableName, head: Copy, path: str, files: Sequence[str]) -> LatestCopy:
        """Return the copy that the record ``head`` describes, with its ``files`` (URIs) in ``path``."""
        return cls(
            table=str(table),
            run_id=head.run_id,
            path=path,
            files=tuple(files),
            rows=head.rows,
            position=position_of(head),
            as_of=head.as_of,
            recorded_at=head.recorded_at,
            published_at=head.published_at,
            source=head.source,
            where=head.where,
            columns=head.columns,
            history=head.history,
            missed_as_of=head.missed_as_of,
            shards=head.shards,
            positions=head.positions,
            feed_gap=head.feed_gap,
        )

    @property
    def locations(self) -> list[str]:
        """The files as DuckDB, Polars and Spark expect them: URIs whose paths are not percent-encoded.

        :raises ConfigurationError: the lake's own path has characters that these libraries treat as a pattern.
        """
        return [LakeUri.parse(uri).plain for uri in self.files]


@dataclass(frozen=True)
class LakeFeed:
    """The changes from one copy of a table to the next copy.

    :param run_id: the id of the run that published the changes, and the later copy.
    :param position: the position of the later copy.
    :param from_run_id: the id of the run that published the earlier copy.
    :param from_position: the position of the earlier copy.
    :param rows: the number of changes.
    :param first_order: the order number of the first change.
    :param files: URIs of the files with the changes, in the order of the changes.
    """

    run_id: str
    position: str
    from_run_id: str
    from_position: str
    rows: int
    first_order: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """A table that a run will copy: the types of the published columns, and the columns of the key.

    ``identities`` has the identity of each column (`sources.api.source.Planning.column_identities`), by the
    column's name. Columns that are not in it are identified by their name. ``layout`` is the requested layout of the
    table. ``names_before`` has, for each column of a table that was altered since the base copy, its name in that copy,
    or an empty text for a new column. ``read`` is set if the names before are those of rows that the run has read: the
    place that was prepared for them. ``base`` is the place of the base copy.
    """

    name: TableName
    published: pa.Schema
    key: tuple[str, ...] = ()
    identities: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = PLAIN
    names_before: Mapping[str, str] = field(default_factory=dict)
    read: Place | None = None
    base: Place | None = None


@dataclass(frozen=True)
class StrayFile:
    """A file of the run ``run_id`` in a table's folder that no snapshot of the table names.

    ``name`` is relative to the table's folder. ``written`` is a time of the store's clock.
    """

    name: str
    uri: str
    bytes: int
    written: datetime
    run_id: str


class Sink(Protocol):
    """A lake in one format. `registry.open_sink` creates the sink of a lake.

    A sink stays on the driver. It may hold the secrets of a catalog, so Spark tasks get folders and a `Place` instead.
    """

    def prepare(self, run_id: str, tables: Sequence[Prepared]) -> dict[TableName, Place]:
        """Prepare the lake for the copies of a run. Return the `Place` of each table's data files. If the result is
        empty, the data files are in the run's folder until they are published.

        :raises ConfigurationError: a table of the lake cannot take these copies.
        """

    def check_ready(self) -> None:
        """Check that the sink can reach everything it needs in addition to the lake's folder. The check does not create
        anything.

        :raises ConfigurationError: the catalog cannot be used.
        """

    def check_names(self, tables: Sequence[TableName]) -> None:
        """Check that the copies of each of ``tables`` have a separate table in the lake.

        :raises ConfigurationError: two tables would share a table of the lake, or a table has no valid name in the
            lake.
        """

    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: Position) -> None:
        """Check that all existing copies of ``tables`` were made from ``source``. The source has reached ``position``.

        :raises ConfigurationError: a copy is of another source.
        """

    def check_rows(self, tables: Sequence[TableName]) -> None:
        """Check that no other program changed rows of the lake's ``tables`` since their newest copies, unless the run
        may replace such rows.

        :raises ConfigurationError: another program changed rows.
        """

    def foreign_change(self, table: TableName) -> str:
        """Describe how another program changed rows of the lake's table since the newest copy; empty: it did not."""

    def latest(self, table: TableName) -> LatestCopy | None:
        """Return the table's latest copy; None: the table has no copy.

        :raises ManifestError: the record of the copy is damaged, or files of the copy are missing.
        """

    def head(self, table: TableName) -> Copy | None:
        """Return the record of the table's latest copy, even if its files are missing; None: the table has no copy.

        :raises ManifestError: the record is damaged.
        """

    def publish(self, publication: Publication) -> dict[TableName, PublishedCopy]:
        """Move the added files of all tables into the lake, and make each copy the latest copy of its table, unless the
        table already has a newer copy. Files that readers may already use are never changed, moved or removed.

        Readers see a table's copy in full or not at all. If the format supports it, readers see all tables change at
        once.

        :raises ConfigurationError: an existing copy is of another source.
        :raises FileDamaged: a file is missing or truncated, or other files are in the folder; a retry cannot help.
        :raises PublishIncomplete: publishing stopped half-way; another call completes it.
        :raises CommitUnknown: it is unknown whether the copies are visible; another call finds out.
        """

    def copy_folder(self, run_id: str, table: TableName) -> Storage:
        """Return the folder of the copy that a run published for a table. Other copies may share the folder."""

    def copy_uri(self, run_id: str, table: TableName) -> str:
        """Return the URI of the copy that a run published for a table, even if the copy is incomplete; empty: there is
        no such copy."""

    def folders(self, run_id: str, table: TableName) -> tuple[Storage, ...]:
        """Return the folders into which the `publish` of a run moves files of a table."""

    def copies(self, table: TableName) -> list[str]:
        """Return the ids of the runs with a copy of the table in this lake. Partial copies, which a `publish` or
        `remove` that did not finish left behind, are included."""

    def feed(self, run_id: str, table: TableName) -> LakeFeed | None:
        """Return the changes that a run published for a table; None: the run published no changes, or they were
        removed.

        :raises ManifestError: the record of the changes is damaged.
        """

    def certificate(self, run_id: str, table: TableName) -> Mapping[str, Any] | None:
        """Return the JSON data of the certificate of the copy that a run published for a table; None: it has none."""

    @property
    def grace(self) -> timedelta:
        """The time for which readers may still use a copy after `withdraw`. The copy is removed only after this
        time."""

    def withdraw(self, copies: Sequence[tuple[str, TableName]]) -> None:
        """Stop directing new readers to these copies, which are not the latest copies of their tables. Each copy is
        given as a run id and a table."""

    def remove(
        self, run_id: str, table: TableName, files: Sequence[StagedFile], feed: Sequence[StagedFile] = ()
    ) -> list[str]:
        """Remove the copy that a run published for a table, and the changes that lead to this copy. The copy must not
        be the table's latest copy. Other copies are not affected. If the removal stops half-way, another call completes
        it.

        ``files`` are the files of the copy, and ``feed`` the files of the changes. Other files in the same folders are
        not removed, but their URIs are returned.
        """

    def difference(self, run_id: str, table: TableName, file: StagedFile) -> str:
        """Return how a file, at the place where `publish` puts it, differs from its record; empty: it does not
        differ."""

    def clean(self, run_id: str, table: TableName, files: Sequence[StagedFile]) -> None:
        """Remove the data files that the tasks of a finished run wrote at their final place, except ``files``."""

    def unread(self, run_id: str, tables: Sequence[TableName]) -> list[str]:
        """Return the URIs of folders that an unfinished `publish` of the run left in the lake. No reader is directed to
        these folders."""

    def stray_files(self, table: TableName) -> list[StrayFile]:
        """Return the files that runs wrote at their final place, and that no copy in the lake names. Runs in progress
        may still need some of these files. If copies are folders, the result is empty."""

    def delete_stray(self, table: TableName, names: Sequence[str]) -> None:
        """Delete files that `stray_files` returned, except files that a copy names by now."""


@runtime_checkable
class ReadsRows(Protocol):
    """A sink whose format has readers of its own, so that the files of a copy cannot be read one by one."""

    def read(self, run_id: str, table: TableName) -> Iterable[pa.RecordBatch]:
        """Read the rows of the copy that a run published for a table, in the types of its data files.

        :raises ManifestError: there is no such copy.
        """
