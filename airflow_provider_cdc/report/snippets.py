"""How to read a copy: a few lines for each of the usual libraries, with its real path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError


@dataclass(frozen=True)
class Snippet:
    """Lines that can be pasted as they are; ``title`` says into what. No line break in a name is one in ``code``."""

    title: str
    code: str


def snippets_of(table: Table, lake: str, copy: str) -> Iterator[Snippet]:
    """Yield how to read the latest copy of a table, and then this one.

    :param lake: the URI of the folder that the copies of all tables lie in.
    :param copy: the URI of the folder that the run published the table's copy in.
    """
    part = table.selection
    arguments = [repr(lake), repr(str(table.name))]
    arguments += [f"where={part.condition!r}"] if part.condition else []
    arguments += [f"columns={list(part.columns)!r}"] if part.columns else []
    yield Snippet(
        "The latest copy, whichever run made it (Python, with this package)",
        "from airflow_provider_cdc.lake import open_dataset, read_latest\n\n"
        f"rows = open_dataset(read_latest({', '.join(arguments)})).to_table()",
    )
    uri = LakeUri.parse(copy)
    try:
        plain = uri.plain
    except ConfigurationError:
        # These libraries would take its name for a pattern.
        return
    if not plain.isprintable():
        return
    local = uri.scheme in ("", "file")
    path = plain.removeprefix("file://") if local else plain
    # Without the setting DuckDB takes the name of the copy's folder for a column.
    quoted = path.replace("'", "''")
    yield Snippet(
        "This copy, with DuckDB (SQL)", f"SELECT * FROM read_parquet('{quoted}/*.parquet', hive_partitioning = false);"
    )
    yield Snippet("This copy, with Spark (Python)", f"rows = spark.read.parquet({plain!r})")
    # PyArrow decodes a URI, but not a path.
    place = path if local else copy
    yield Snippet("This copy, with pandas (Python)", f"import pandas\n\nrows = pandas.read_parquet({place!r})")
    yield Snippet(
        "This copy, with PyArrow (Python)",
        f"import pyarrow.dataset\n\nrows = pyarrow.dataset.dataset({place!r}, format='parquet').to_table()",
    )
