"""For whoever reads the lake: which copy of a table is the latest one. Needs no Airflow, no Spark and no database.

::

    from airflow_provider_cdc.lake import open_dataset, read_latest

    copy = read_latest("s3://lake/raw", "shop.orders")
    open_dataset(copy).to_table()
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pyarrow import dataset

from airflow_provider_cdc.core.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.selection import selection_of
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import CopyName, TableName
from airflow_provider_cdc.sinks.base import LatestCopy
from airflow_provider_cdc.sinks.registry import open_sink

__all__ = ["LatestCopy", "open_dataset", "read_latest"]


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


def open_dataset(copy: LatestCopy) -> dataset.Dataset:
    """The rows of a copy as a PyArrow dataset, from whichever store its files lie in."""
    folder = cache(Storage)
    places = [uri.rpartition("/") for uri in copy.files]
    paths = [folder(parent).path(name) for parent, _, name in places]
    return dataset.dataset(paths, format="parquet", filesystem=folder(places[0][0]).filesystem)
