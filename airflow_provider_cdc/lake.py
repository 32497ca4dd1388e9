"""For whoever reads the lake: which copy of a table is the latest one. Needs no Airflow, no Spark and no database.

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

from pyarrow import dataset

from airflow_provider_cdc.core.copies.history import history_in
from airflow_provider_cdc.core.positions.as_of import parse_position, reaches
from airflow_provider_cdc.core.run.feed import feed_schema
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import CopyName, TableName
from airflow_provider_cdc.errors import ChangesMissing, PositionError
from airflow_provider_cdc.sinks.base import LakeFeed, LatestCopy
from airflow_provider_cdc.sinks.registry import open_sink

__all__ = ["Changes", "LatestCopy", "open_dataset", "read_changes", "read_latest"]


@dataclass(frozen=True)
class Changes:
    """Every row change of one table from a copy of it to its latest one, as it was when that was asked.

    :param table: ``schema.table``.
    :param from_run_id: of the run that published the copy that they begin at.
    :param from_position: the one that this copy is exact at.
    :param run_id: of the run that published the latest copy.
    :param position: the one that the latest copy is exact at.
    :param rows: how many changes there are.
    :param files: URIs of all their files, in the order of the changes; none, if they begin at the latest copy.
    :param copy_file: URI of a file of the latest copy, whose columns tell those of the changes.
    """

    table: str
    from_run_id: str
    from_position: str
    run_id: str
    position: str
    rows: int
    files: tuple[str, ...]
    copy_file: str

    @property
    def locations(self) -> list[str]:
        """The files as DuckDB, Polars and Spark name them: as URIs whose paths are not percent-encoded.

        :raises ConfigurationError: the lake's own path has what these libraries take for a pattern.
        """
        return [LakeUri.parse(uri).plain for uri in self.files]


def read_latest(
    target: str, table: str, *, where: str | None = None, columns: Sequence[str] | None = None
) -> LatestCopy | None:
    """The latest copy of a table; None: none was published yet.

    Its files never change. So a reader that asked once reads one exact copy, whatever is published meanwhile.

    :param target: the folder that runs publish in, as they name it, with ``{source}`` filled in.
    :param table: ``schema.table``.
    :param where: the condition that runs copied rows by, however it is written down; None: all rows were copied.
    :param columns: the columns that were asked for, in any order; None: all were copied.
    :raises ConfigurationError: ``target`` is no place in a lake, ``table`` no name of a table, or ``where`` no
        condition.
    :raises ManifestError: what is told of the copy is damaged, or its files are gone.
    :raises StorageUnavailable: the store does not answer.
    :raises StorageRefused: the store denies access.
    """
    name = CopyName.of(TableName.parse(table), selection_of(where, columns))
    return open_sink(LAKE_FORMAT, Storage(target)).latest(name)


def read_changes(
    target: str, table: str, since: str = "", *, where: str | None = None, columns: Sequence[str] | None = None
) -> Changes:
    """The changes of a table from one of its copies to the latest one, without a gap.

    Replayed in their order onto that copy, they give the latest one.

    :param target: as for `read_latest`.
    :param table: ``schema.table``.
    :param since: the copy to begin at: its position, or the ``run_id`` of its run, which may have been made again at
        another position once that copy was removed; empty: the copy before the latest. If the source was set back, its
        positions tell only from where it had come to before; until then, give the ``run_id``.
    :param where: with ``columns`` the part of the table that was copied, as for `read_latest`.
    :raises ChangesMissing: there are none from that copy on, or not all of them are there any more.
    :raises ConfigurationError: ``target`` is no place in a lake, ``table`` no name of a table, or ``where`` no
        condition.
    :raises ManifestError: what is told of copies or changes is damaged.
    :raises StorageUnavailable: the store does not answer.
    :raises StorageRefused: the store denies access.
    """
    name = CopyName.of(TableName.parse(table), selection_of(where, columns))
    sink = open_sink(LAKE_FORMAT, Storage(target))
    latest = sink.latest(name)
    if latest is None:
        raise ChangesMissing("the table has no copy yet", where=table, hint="wait until a run has published it")
    _check_unambiguous(latest, since)
    feeds: list[LakeFeed] = []
    run_id, position = latest.run_id, latest.position
    while since not in (run_id, position) and (since or not feeds):
        feed = sink.feed(run_id, name)
        joins = feed is not None and (not feeds or feed.first_order + feed.rows == feeds[0].first_order)
        if feed is None or not joins or feed.position != position:
            raise ChangesMissing(
                f"there are no changes that lead to the copy of run {run_id}, which is exact at {position}",
                where=table,
                hint="read the latest copy as a whole, and from then on the changes since it"
                if since
                else "the run that made it had no copy before, or not the option changes: read the copy as a whole",
            )
        feeds.insert(0, feed)
        run_id, position = feed.from_run_id, feed.from_position
    return Changes(
        table=str(name),
        from_run_id=run_id,
        from_position=position,
        run_id=latest.run_id,
        position=latest.position,
        rows=sum(feed.rows for feed in feeds),
        files=tuple(file for feed in feeds for file in feed.files),
        copy_file=latest.files[0],
    )


def _check_unambiguous(latest: LatestCopy, since: str) -> None:
    """Make sure that a copy of the present history is meant: one that ended may have had a copy at the same position.

    :raises ChangesMissing: ``since`` is a position that a history has, too, which ended when the source was set back.
    """
    history, ended = history_in(latest.history), []
    # An id of a run is no position.
    with suppress(PositionError):
        superseded = history.superseded if history and since else ()
        ended = [entry for entry in superseded if reaches(parse_position(entry.position), parse_position(since))]
    if ended:
        raise ChangesMissing(
            f"the source was set back, and {since} may be of the history that ended with the copy of run "
            f"{ended[-1].run_id}, from which no changes lead on",
            where=latest.table,
            hint="give the run_id of the copy; if it is of before, read the latest copy as a whole, and from then on "
            "the changes since it",
        )


def open_dataset(copy: LatestCopy | Changes) -> dataset.Dataset:
    """The rows of a copy, or changes, as a PyArrow dataset, from whichever store the files lie in."""
    if isinstance(copy, Changes) and not copy.files:
        return dataset.dataset(feed_schema(_opened([copy.copy_file]).schema).empty_table())
    return _opened(copy.files)


def _opened(files: Sequence[str]) -> dataset.Dataset:
    folder = cache(Storage)
    places = [uri.rpartition("/") for uri in files]
    paths = [folder(parent).path(name) for parent, _, name in places]
    return dataset.dataset(paths, format="parquet", filesystem=folder(places[0][0]).filesystem)
