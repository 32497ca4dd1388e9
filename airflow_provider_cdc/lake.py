"""Functions that find the latest copy of a table in the lake, and the changes between copies. This module needs neither
Airflow, Spark nor a database.

::

    from airflow_provider_cdc.lake import open_dataset, read_latest

    copy = read_latest("s3://lake/raw", "shop.orders")
    open_dataset(copy).to_table()
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import dataset

from airflow_provider_cdc.core.positions.as_of import parse_position, reaches
from airflow_provider_cdc.core.positions.facts import history_in
from airflow_provider_cdc.core.run.commit_record import feed_schema
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri, StorageSettings
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import CopyName, TableName
from airflow_provider_cdc.errors import ChangesMissing, ConfigurationError, PositionError
from airflow_provider_cdc.sinks.base import LakeFeed, LatestCopy, Sink
from airflow_provider_cdc.sinks.beside_copies import LakeFeedGap, feeds_of, read_gap
from airflow_provider_cdc.sinks.registry import CUTS_NAMESPACE, open_sink

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_cdc.sinks.iceberg.cut_table import Cut

__all__ = ["Changes", "LatestCopy", "open_dataset", "read_changes", "read_cut", "read_latest"]


@dataclass(frozen=True)
class Changes:
    """All row changes of one table between an earlier copy and the copy that was the latest at the time of the call.

    :param table: ``schema.table``.
    :param from_run_id: the id of the run that published the earlier copy. The changes begin at this copy.
    :param from_position: the position of the earlier copy.
    :param run_id: the id of the run that published the latest copy.
    :param position: the position of the latest copy.
    :param rows: the number of changes.
    :param files: URIs of all files of the changes, in the order of the changes. Empty if the earlier copy is still the
        latest copy.
    :param copy_file: URI of one file of the latest copy. The changes have the same columns as this file. It is empty if
        the copy is a snapshot of an Iceberg table.
    :param schema: the columns of the changes, if there is no file of changes from which to read the columns; otherwise
        None.
    """

    table: str
    from_run_id: str
    from_position: str
    run_id: str
    position: str
    rows: int
    files: tuple[str, ...]
    copy_file: str = ""
    schema: pa.Schema | None = None

    @property
    def locations(self) -> list[str]:
        """The files for DuckDB, Polars and Spark: URIs whose paths are not percent-encoded.

        :raises ConfigurationError: the lake's path has characters that these libraries treat as a pattern.
        """
        return [LakeUri.parse(uri).plain for uri in self.files]


def read_latest(
    target: str,
    table: str,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    storage: StorageSettings | None = None,
) -> LatestCopy | None:
    """Return the latest copy of a table, or None if no copy has been published yet.

    The files of a copy never change. So a reader that calls this function only once reads one exact copy, even if other
    copies are published during the read.

    :param target: the folder in which runs publish, as in the option ``target``. ``{source}`` must be replaced by its
        value.
    :param table: ``schema.table``.
    :param where: the condition that selected the copied rows, in any notation. It is None if all rows were copied.
    :param columns: the requested columns, in any order. It is None if all columns were copied.
    :param storage: access to the object store, as returned by `hooks.storage.storage_settings`. If it is None, the
        settings in the environment apply.
    :raises ConfigurationError: ``target`` is not a folder in a lake, ``table`` is not a table's name, or ``where`` is
        not a condition.
    :raises ManifestError: the record of the copy is damaged, or its files are gone.
    :raises StorageUnavailable: the store does not answer.
    :raises StorageRefused: the store denies access.
    """
    name = CopyName.of(TableName.parse(table), selection_of(where, columns))
    return open_sink(LAKE_FORMAT, Storage(target, storage)).latest(name)


def read_cut(
    catalog: Catalog | str,
    *,
    namespace: str = CUTS_NAMESPACE,
    group: str | None = None,
    run_id: str | None = None,
    position: str | None = None,
) -> Cut | None:
    """Return the newest cut of Iceberg tables, or the cut of a given run or position. Return None if this cut does not
    exist.

    A cut is the set of the copies of all tables of one run. All tables of a cut are exact at one position, even if
    other runs publish meanwhile::

        cut = read_cut("/data/lake")
        orders, lines = cut["shop.orders"].to_arrow(), cut["shop.lines"].to_arrow()

    :param catalog: a PyIceberg catalog, or the target of the runs if the catalog is in the target folder.
    :param namespace: the namespace of the Iceberg table ``cdc_cuts``.
    :param group: the task group of the runs, as ``dag_id`` or ``dag_id.group_id``. It may be None if only one group has
        cuts.
    :raises ConfigurationError: there are cuts of several groups, and the call does not name a group; or PyIceberg is
        not installed.
    """
    try:
        from airflow_provider_cdc.sinks.iceberg import cut_table
    except ImportError as error:
        raise ConfigurationError(
            f"PyIceberg is not installed: {error}", hint="pip install 'airflow-provider-cdc[iceberg]'"
        ) from error
    return cut_table.read_cut(catalog, namespace=namespace, group=group, run_id=run_id, position=position)


def read_changes(
    target: str,
    table: str,
    since: str = "",
    *,
    cut: Cut | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    storage: StorageSettings | None = None,
) -> Changes:
    """Return the changes of a table between one of its copies and the latest copy, without a gap.

    Applying the changes in order to the earlier copy gives the latest copy. For Iceberg tables, pass a cut. The changes
    then end at the copy in the cut, so the changes of several tables end at one position::

        cut = read_cut(catalog)
        orders, lines = (read_changes(target, name, since, cut=cut) for name in ("shop.orders", "shop.lines"))

    :param target: the folder in which runs publish, as for `read_latest`.
    :param table: ``schema.table``.
    :param since: the copy at which the changes begin, named by its position or by the ``run_id`` of its run. If it is
        empty, the changes begin at the copy before the latest copy. Note that a run may have been recreated at another
        position after its copy was removed. If the source was set back to an earlier state, the same position may
        belong to two copies. In this case, pass the ``run_id``, until the source has passed the position that it had
        reached before it was set back. A position does not suffice, either, if the changes begin anew at a copy, and
        nothing was logged since the copy before it.
    :param cut: the changes end at the table's copy in this cut. If ``cut`` is None, they end at the latest copy as
        plain Parquet files.
    :param where: together with ``columns``, the part of the table that was copied, as for `read_latest`.
    :param storage: as for `read_latest`.
    :raises ChangesMissing: no changes were published since the copy ``since``, the changes began anew since then
        (``on_feed_gap``), or some of the changes no longer exist.
    :raises ConfigurationError: ``target`` is not a folder in a lake, ``table`` is not a table's name, or ``where`` is
        not a condition.
    :raises ManifestError: a record of copies or changes is damaged.
    :raises StorageUnavailable: the store does not answer.
    :raises StorageRefused: the store denies access.
    """
    name = CopyName.of(TableName.parse(table), selection_of(where, columns))
    # Changes are files in the target, whatever the format of the copies.
    lake = Storage(target, storage)
    sink = open_sink(LAKE_FORMAT, lake)
    latest = _latest(sink, lake, name) if cut is None else _latest_in(cut, name)
    _check_unambiguous(latest, since)
    feeds: list[LakeFeed] = []
    run_id, position = latest.run_id, latest.position
    while since not in (run_id, position) and (since or not feeds):
        feed = sink.feed(run_id, name)
        joins = feed is not None and (not feeds or feed.first_order + feed.rows == feeds[0].first_order)
        if feed is None and (gap := read_gap(lake, name, run_id)) is not None:
            raise _begins_anew(gap, table, since)
        if feed is None or not joins or feed.position != position:
            raise ChangesMissing(
                f"the changes before the copy of run {run_id}, at position {position}, are not published",
                where=table,
                hint="read the latest copy as a whole, and from then on the changes since that copy"
                if since
                else "read the copy as a whole: the run that made it had no earlier copy, or not the option changes",
            )
        feeds.insert(0, feed)
        run_id, position = feed.from_run_id, feed.from_position
    if since not in ("", run_id):
        _check_one_copy(sink, lake, name, run_id, since)
    return Changes(
        table=str(name),
        from_run_id=run_id,
        from_position=position,
        run_id=latest.run_id,
        position=latest.position,
        rows=sum(feed.rows for feed in feeds),
        files=tuple(file for feed in feeds for file in feed.files),
        copy_file="" if cut is not None else latest.files[0],
        schema=None if cut is None or feeds else _schema_in(cut, name, sink.feed(latest.run_id, name), storage),
    )


def _begins_anew(gap: LakeFeedGap, table: str, since: str) -> ChangesMissing:
    """Return the error for a reader of changes that would have to cross a gap."""
    return ChangesMissing(
        f"the changes begin anew at {gap.end} (the copy of run {gap.run_id}). No changes lead to this copy from the "
        f"copy before it{f' (of run {gap.from_run_id}, at {gap.start})' if gap.start else ''}: {gap.reason}",
        where=table,
        hint="load the latest copy as a whole, and go on with the changes since its position"
        if since
        else "load this copy as a whole, and go on with the changes since its position",
    )


def _check_one_copy(sink: Sink, lake: Storage, table: TableName, run_id: str, position: str) -> None:
    """Check that no changes begin anew at a copy that has the position of the copy before it. Nothing was logged
    between such copies, but they may differ: in their options, or because of a change that was not logged.

    :param run_id: the run of a copy at ``position``. The copies before it may have this position, too.
    :raises ChangesMissing: ``position`` does not tell on which side of the gap the reader's copy is.
    """
    while (feed := sink.feed(run_id, table)) is not None:
        if feed.from_position != position:
            return
        run_id = feed.from_run_id
    gap = read_gap(lake, table, run_id)
    if gap is not None and gap.start == position:
        raise ChangesMissing(
            f"the changes begin anew at the copy of run {gap.run_id}, which has the same position {position} as the "
            f"copy before it (of run {gap.from_run_id}), but may have other rows: {gap.reason}",
            where=str(table),
            hint="load the latest copy as a whole, and go on with the changes since its `run_id`. After the next "
            "change, positions are unambiguous again",
        )


def _latest(sink: Sink, lake: Storage, table: TableName) -> LatestCopy:
    """Return the latest copy as plain Parquet files.

    :raises ChangesMissing: there is none.
    """
    latest = sink.latest(table)
    if latest is not None:
        return latest
    if lake.folders(feeds_of(table)):
        raise ChangesMissing(
            "the table has published changes, but no copy as plain Parquet files",
            where=str(table),
            hint="if the table's copies are snapshots of an Iceberg table, name the cut to which the changes lead: "
            "read_changes(…, cut=read_cut(catalog))",
        )
    raise ChangesMissing("the table has no copy yet", where=str(table), hint="wait until a run has published it")


def _latest_in(cut: Cut, table: TableName) -> LatestCopy:
    """Return the copy of a table in a cut.

    :raises ChangesMissing: there is none.
    """
    if str(table) not in cut.tables:
        raise ChangesMissing(
            f"the cut of run {cut.run_id} has no copy of the table",
            where=str(table),
            hint=f"choose one of {', '.join(cut.tables)}, or another task group in read_cut",
        )
    copy = cut[str(table)].copy()
    if isinstance(table, CopyName) != bool(copy.where or copy.columns):
        raise ChangesMissing(
            f"the cut of run {cut.run_id} has a copy of {'a part of' if copy.where or copy.columns else 'all of'} the "
            "table",
            where=str(table),
            hint="give where and columns as the run that copied the table had them",
        )
    return copy


def _schema_in(cut: Cut, table: TableName, feed: LakeFeed | None, storage: StorageSettings | None) -> pa.Schema:
    """Return the columns that the changes of a table would have. Used if there are no changes."""
    return feed_schema(cut[str(table)].arrow_schema()) if feed is None else _opened(feed.files, storage).schema


def _check_unambiguous(latest: LatestCopy, since: str) -> None:
    """Check that ``since`` names a copy of the present history. A history ends when the source is set back. A copy of
    an ended history may have the same position as a copy of the present history.

    :raises ChangesMissing: ``since`` is a position that also exists in an ended history.
    """
    history, ended = history_in(latest.history), []
    # ``since`` may be the id of a run instead of a position.
    with suppress(PositionError):
        superseded = history.superseded if history and since else ()
        ended = [entry for entry in superseded if reaches(parse_position(entry.position), parse_position(since))]
    if ended:
        raise ChangesMissing(
            f"the source was set back to an earlier state. {since} may belong to the earlier history, which ended "
            f"with the copy of run {ended[-1].run_id}. No published changes connect that history with the present "
            "history",
            where=latest.table,
            hint="give the `run_id` of the copy instead of its position. If the copy was made before the source was "
            "set back, read the latest copy once as a whole. Then read the changes after the latest copy",
        )


def open_dataset(copy: LatestCopy | Changes, storage: StorageSettings | None = None) -> dataset.Dataset:
    """Return a PyArrow dataset with the rows of a copy, or with changes. The files may be in any supported store.

    :param storage: as for `read_latest`.
    """
    if isinstance(copy, Changes) and copy.schema is not None:
        return dataset.dataset(copy.schema.empty_table())
    if isinstance(copy, Changes) and not copy.files:
        return dataset.dataset(feed_schema(_opened([copy.copy_file], storage).schema).empty_table())
    if not copy.files:
        raise ConfigurationError(
            "this copy is an Iceberg table with position deletes, and its data files alone have deleted rows",
            where=copy.table,
            hint="read the table with read_cut",
        )
    return _opened(copy.files, storage)


def _opened(files: Sequence[str], storage: StorageSettings | None) -> dataset.Dataset:
    folder = cache(lambda uri: Storage(uri, storage))
    places = [uri.rpartition("/") for uri in files]
    paths = [folder(parent).path(name) for parent, _, name in places]
    return dataset.dataset(paths, format="parquet", filesystem=folder(places[0][0]).filesystem)
