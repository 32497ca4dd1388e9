"""Code snippets that read a copy with common libraries. The snippets contain the real path of the copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError


@dataclass(frozen=True)
class Snippet:
    """Code that the reader can copy and paste. ``title`` names the language. A line break in a name does not add a line
    to ``code``."""

    title: str
    code: str


def snippets_of(table: Table, lake: str, copy: str) -> Iterator[Snippet]:
    """Yield snippets that read the latest copy of a table, and then snippets that read the given copy.

    :param lake: the URI of the target, which has the copies of all tables.
    :param copy: the URI of the folder of the given copy.
    """
    part = table.selection
    arguments = [repr(lake), repr(str(table.lake_name))]
    arguments += [f"where={part.condition!r}"] if part.condition else []
    arguments += [f"columns={list(part.columns)!r}"] if part.columns else []
    yield Snippet(
        "The latest copy, published by any run (Python, with this package)",
        "from airflow_provider_cdc.lake import open_dataset, read_latest\n\n"
        f"rows = open_dataset(read_latest({', '.join(arguments)})).to_table()",
    )
    uri = LakeUri.parse(copy)
    try:
        plain = uri.plain
    except ConfigurationError:
        # Show no more snippets, because their libraries would interpret this path as a pattern.
        return
    if not plain.isprintable():
        return
    local = uri.scheme in ("", "file")
    path = plain.removeprefix("file://") if local else plain
    # Without ``hive_partitioning = false``, DuckDB would parse the name of the copy's folder and add a column.
    quoted = path.replace("'", "''")
    yield Snippet(
        "This copy, with DuckDB (SQL)", f"SELECT * FROM read_parquet('{quoted}/*.parquet', hive_partitioning = false);"
    )
    yield Snippet("This copy, with Spark (Python)", f"rows = spark.read.parquet({plain!r})")
    # PyArrow decodes percent-encoded characters in a URI, but not in a path.
    place = path if local else copy
    yield Snippet("This copy, with pandas (Python)", f"import pandas\n\nrows = pandas.read_parquet({place!r})")
    yield Snippet(
        "This copy, with PyArrow (Python)",
        f"import pyarrow.dataset\n\nrows = pyarrow.dataset.dataset({place!r}, format='parquet').to_table()",
    )
