"""The door to the lake: what every sink can do, whatever its format.

The run's commit, of which there is only ever one, fixes what is published. `Sink.publish` does it, for all tables in
one call. It may be repeated after a crash, or done by several tries at once: what it does follows from the commit
alone, so it completes what another call began and never undoes it. A sink is registered in `sinks.registry`, and
``tests/sinks/test_contract.py`` holds it to this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_cdc.core.copies.head import Copy
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.feed import Feed
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import TableName


@dataclass(frozen=True)
class TableChange:
    """What becomes of the files of one table's copy.

    ``added`` are files in the run's staging. ``kept``, named without a folder, are those that the copy of the run
    ``base`` has, too. Of a part of a table: ``where`` and ``columns`` are what `Selection` has, for readers. ``feed``:
    the changes since that copy; None: they are not published. ``history`` is what `Manifest.history_of` gave.
    """

    table: TableName
    added: tuple[StagedFile, ...]
    kept: tuple[StagedFile, ...] = ()
    base: str = ""
    where: str = ""
    columns: tuple[str, ...] = ()
    feed: Feed | None = None
    history: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in (*self.added, *self.kept))


@dataclass(frozen=True)
class Publication:
    """What a run publishes: its commit, and what readers are told of it.

    All copies are exact at ``position``, which the source calls ``position_key``; it was recorded at ``recorded_at``.
    ``source`` is what `core.head.source_of` gave. ``as_of`` is what the run was asked to be exact at; empty: now.
    ``missed_as_of`` is what `Manifest.missed_as_of` gave. Times are ISO 8601.
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


@dataclass(frozen=True)
class PublishedCopy:
    """Where readers find one table's copy, and whether it is the table's latest one now."""

    uri: str
    is_latest: bool


@dataclass(frozen=True)
class LatestCopy:
    """The latest copy of one table, as readers are told of it.

    :param table: ``schema.table``.
    :param run_id: of the run that published it.
    :param path: URI of the folder of the run's copy.
    :param files: URIs of all files of the copy, sorted. Read these, wherever they lie.
    :param rows: how many rows they hold.
    :param position: the GTID set or LSN that the copy is exact at.
    :param as_of: what the run was asked to be exact at (a time, or a position); empty: the present of its time.
    :param recorded_at: when the run began, and when the copy was published: ISO 8601.
    :param published_at: see ``recorded_at``.
    :param source: which source it is a copy of: ``kind``, ``connection``, ``server``, ``database``, as far as known.
    :param where: the condition that its rows fulfil; empty: it has all rows.
    :param columns: the columns that were asked for, beside those of the key; empty: it has all columns.
    :param missed_as_of: the end of the interval that a nightly run was to be exact at and could not be; empty: there is
        none.
    :param history: which history of the source it is of (``id``, ``number``), and which ones ended before
        (``superseded``); empty: the record does not say.
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

    @property
    def locations(self) -> list[str]:
        """The files as DuckDB, Polars and Spark name them: as URIs whose paths are not percent-encoded.

        :raises ConfigurationError: the lake's own path has what these libraries take for a pattern.
        """
        return [LakeUri.parse(uri).plain for uri in self.files]


@dataclass(frozen=True)
class LakeFeed:
    """The changes that lead from one copy of a table to the next, as readers are told of them.

    :param run_id: of the run that published them, with the copy that they lead to.
    :param position: the one that this copy is exact at.
    :param from_run_id: of the run that published the copy that they begin at.
    :param from_position: the one that that copy is exact at.
    :param rows: how many changes there are.
    :param first_order: the order of the first one.
    :param files: URIs of their files, in their order.
    """

    run_id: str
    position: str
    from_run_id: str
    from_position: str
    rows: int
    first_order: int
    files: tuple[str, ...]


class Sink(Protocol):
    """One lake in one format. `registry.open_sink` makes it."""

    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: Position) -> None:
        """Make sure that the copies of ``tables`` that are there are of ``source``, which has all of ``position``.

        :raises ConfigurationError: they are another source's.
        """

    def latest(self, table: TableName) -> LatestCopy | None:
        """The table's latest copy; None: it has none.

        :raises ManifestError: what is told of it is damaged, or its files are gone.
        """

    def head(self, table: TableName) -> Copy | None:
        """What is told of the table's latest copy, whatever became of its files; None: it has none.

        :raises ManifestError: what is told of it is damaged.
        """

    def publish(self, publication: Publication) -> dict[TableName, PublishedCopy]:
        """Take over the added files of all tables, and make these copies the latest ones, unless a copy at a newer
        position is. No file that readers may know is ever touched.

        Readers see all of a table's copy or nothing of it; and all tables at once if the format can do that.

        :raises ConfigurationError: a copy that is there is another source's.
        :raises FileDamaged: a file is gone or cut short, or files are in the way, so calling it again cannot help.
        :raises PublishIncomplete: it stopped half-way; calling it again completes it.
        :raises CommitUnknown: whether the copies can be seen is not known; calling it again finds out.
        """

    def copy_folder(self, run_id: str, table: TableName) -> Storage:
        """The folder with the files of the copy that a run published of a table."""

    def copies(self, table: TableName) -> list[str]:
        """The ids of the runs whose copies of a table lie here, whole or in part: also what a `publish` or a `remove`
        that is not done left."""

    def feed(self, run_id: str, table: TableName) -> LakeFeed | None:
        """The changes of a table that a run published; None: it published none, or they were removed.

        :raises ManifestError: what is told of them is damaged.
        """

    def remove(
        self, run_id: str, table: TableName, files: Sequence[StagedFile], feed: Sequence[StagedFile] = ()
    ) -> list[str]:
        """Remove the copy of a table that a run published, and that is not the latest one, with the changes that lead
        to it. Other copies stay whole. If it stops half-way, calling it again completes it.

        Returns the URIs of what lies there and is none of ``files``, the files of the copy, nor of ``feed``, those of
        the changes: that stays.
        """

    def difference(self, run_id: str, table: TableName, file: StagedFile) -> str:
        """How a file differs from its record where `publish` puts it; empty if it does not."""

    def unread(self, run_id: str, tables: Sequence[TableName]) -> list[str]:
        """URIs of what a `publish` of the run that stopped half-way left in the lake, and no reader is led to."""
