"""The objects that say what a run copies, and to where: `Table`, `Merge`, `Lake`, `Iceberg` and `Retention`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

import msgspec

from airflow_provider_cdc.core.options.declare import (
    BY_NAME,
    CODECS,
    COLUMNS,
    CONDITION,
    CONNECTION_OR_EMPTY,
    COUNT_OR_NONE,
    FIRST_SHARD,
    FLAG,
    FORMATS,
    LAYOUT,
    LIST,
    PARTITION_KEY,
    PATTERNS,
    TABLE_TEMPLATE,
    TEXT,
    URI,
    URI_OR_EMPTY,
    Accepted,
    Declaration,
    Template,
    declaration,
    one_of,
    option,
)

_SHARDS = replace(PATTERNS, what="a list of tables; or null", plain=lambda value: list(value or ()))
_TABLES = replace(COLUMNS, what="a list of tables")
_NAME = Accepted("the name of a table", Annotated[str, msgspec.Meta(pattern=r"\S")], {"type": "string"})


@declaration
class Table(Declaration):
    """A table of the source, or a pattern, and what is copied of it::

        Table("shop.orders", where="status = 'open'", columns=["id", "status"])

    A pattern adds all its tables to the run.
    """

    section = "Tables"

    name: str = option(
        key=True,
        kw_only=False,
        accepts=_NAME,
        help="The table as `schema.table`, or a pattern as in `tables`.",
        example="text such as shop.orders",
    )
    where: str = option(
        default="",
        by_table=True,
        common=True,
        accepts=CONDITION,
        title="Rows (where)",
        help="The condition of the rows to copy, such as `status = 'open' and created >= '2026-01-01'`. Only rows that "
        "fulfil the condition at the run's position are copied. The syntax is a subset of SQL. Text is compared by "
        "code point. Copies with a condition are in a separate folder or Iceberg table.",
        example="text such as \"created >= '2026-01-01'\"",
    )
    columns: Sequence[str] | Template = option(
        default=(),
        by_table=True,
        accepts=COLUMNS,
        title="Columns",
        help='The columns to publish, such as `["id", "status"]`. To exclude columns, list all others. The key '
        "columns are always published. The copies of a table with selected columns are in a separate folder or Iceberg "
        "table.",
        example='a list such as ["id", "status"]',
    )
    partition_by: Sequence[str] | Template = option(
        default=(),
        by_table=True,
        accepts=LAYOUT,
        help='The partitioning of the Iceberg table: a list of columns and of transforms of columns (`["country", '
        '"month(created)", "bucket(16, id)"]`). The transforms are `year`, `month`, `day` and `hour` of a time, '
        "`bucket(number, column)`, and `truncate(length, column)` of a text. It applies when the Iceberg table is "
        "created. One task writes at most 200 partitions.",
        example='a list such as ["month(created)"]',
    )
    sort_by: Sequence[str] | Template = option(
        default=(),
        by_table=True,
        accepts=LAYOUT,
        help='The sort order of the Iceberg table: a list of columns (`["created desc", "id"]`). It is a property of '
        "the table for programs that compact it. The files of a run are not sorted by it.",
        example='a list such as ["created"]',
    )


@declaration
class Merge(Declaration):
    """A merged table: the rows of several tables of the source (shards), published as one table::

        Merge("shop.orders", ["shop_*.orders"], origin_columns=True)

    The run copies the shards in addition to the other tables. If it has several merged tables, ``origin_columns`` and
    ``column_order`` apply to all of them.
    """

    section = "Merged tables"

    name: str = option(
        key=True,
        kw_only=False,
        accepts=_NAME,
        help="The name of the merged table, as `schema.table`.",
        example="text such as shop.orders",
    )
    shards: Sequence[str] | Template = option(
        name="merge",
        by_table=True,
        kw_only=False,
        accepts=_TABLES,
        title="Merged tables",
        help="The shards: the tables of the source whose rows the merged table has, by name or pattern "
        '(`["shop_*.orders_*"]`). They are published together, as one table, and not on their own. All shards need the '
        "same key and the same columns. In a form, `tables` must match the shards, too.",
        example='a list such as ["shop_*.orders_*"]',
    )
    origin_columns: bool | Template = option(
        default=False,
        accepts=FLAG,
        title="Origin columns",
        help="Add the columns `_source`, `_schema` and `_table` to merged tables: the connection, the schema and the "
        "table from which a row was copied.",
        example="true or false",
    )
    column_order: str = option(
        default=FIRST_SHARD,
        accepts=one_of(
            (FIRST_SHARD, BY_NAME), ("first_shard: as in the first shard, by name", "name: the key, and then by name")
        ),
        title="Order of the columns of merged tables",
        help="The order of a merged table's columns: `first_shard`: that of its first shard. `name`: the key, and then "
        "by name.",
        example="first_shard or name",
    )
    vanished_shards: Sequence[str] | Template | None = option(
        default=None,
        accepts=_SHARDS,
        title="Shards that may be missing",
        help="Tables that were shards of the last copy of a merged table, and that may be missing now. Without this "
        "confirmation, a missing shard stops the merged table, because its rows would disappear.",
        example='a list such as ["shop_3.orders"]',
    )


@declaration
class Iceberg(Declaration):
    """Iceberg tables in a catalog, as the format of the copies."""

    section = "Lake"
    implies = MappingProxyType({"format": "iceberg"})

    catalog_conn_id: str = option(
        default="",
        kw_only=False,
        accepts=CONNECTION_OR_EMPTY,
        help="Connection of type `cdc_catalog` to the catalog of the Iceberg tables. Empty: a SQLite catalog in the "
        "file `_catalog.db` of the target. The target must then be on a local disk.",
        example="text such as cdc_catalog",
    )
    table_name: str = option(
        default="{schema}.{table}",
        accepts=TABLE_TEMPLATE,
        help="A template for the names of the Iceberg tables, with the namespace. `{schema}` and `{table}` stand for "
        "the schema and the table in the source, `{source}` for the id of the source's connection. `__part_` and a "
        "digest follow if rows or columns are selected.",
        example="text such as raw.{schema}_{table}",
    )


@declaration
class Retention(Declaration):
    """Which older copies a run removes after it has published its own."""

    section = "Lake"

    copies: int | Template = option(
        default=0,
        name="keep",
        kw_only=False,
        accepts=COUNT_OR_NONE,
        title="Copies to keep",
        help="Number of copies to keep of each table. After a run has published its copies, it removes older copies of "
        "the same tables, even if another run published these copies. 0 keeps all copies.",
        example="a number such as 7",
    )
    days: int | Template = option(
        default=0,
        name="keep_days",
        accepts=COUNT_OR_NONE,
        title="Days that copies stay",
        help="Copies that were published within this number of days are kept, even if there are more than `keep` "
        "copies. Requires `keep`. 0: only the number of copies counts.",
        example="a number such as 30",
    )


@declaration
class Lake(Declaration):
    """Where and in which form the copies are published::

        Lake("s3://lake/raw", format=Iceberg("cdc_catalog"), retention=Retention(7, days=30))

    The attribute ``retention`` may be the number of copies.
    """

    section = "Lake"

    uri: str = option(
        name="target",
        kw_only=False,
        common=True,
        accepts=URI,
        title="Target",
        secret=True,
        help="The folder to publish in, as an absolute path or a URI (`file:///…`, `s3://…`, `gs://…`, `abfs://…`, "
        "`hdfs://…`) without query, fragment or user info. Airflow and Spark must both reach it. `{source}` in the "
        "path stands for `source_conn_id`, because a folder can hold the copies of only one source.",
        example="a URI such as file:///data/lake or s3://bucket/lake",
    )
    format: Iceberg | str = option(
        default="parquet",
        accepts=one_of(
            FORMATS,
            (
                "parquet: a folder of Parquet files for each copy",
                "iceberg: Iceberg tables, and cuts of all tables at one position",
            ),
        ),
        title="Format",
        help="The format of the copies. `parquet`: a folder of Parquet files for each copy, and `_latest.json`. "
        "`iceberg`: one snapshot of an Iceberg table for each copy, and one cut for each run. A reader of a cut sees "
        "all tables at one position. This format needs the extra `iceberg`.",
        example="parquet or iceberg",
    )
    compression: str = option(
        default=CODECS[0],
        accepts=one_of(CODECS, ("zstd: smaller files", "snappy: for readers that do not decode zstd")),
        title="Compression",
        help="The codec of the Parquet files that a run writes. `zstd` (level 1) makes files of about half the size. "
        "`snappy`: for readers that do not decode zstd. Files, and columns in files, that a run takes over from the "
        "last copy keep their codec. The property `write.parquet.compression-codec` of an Iceberg table names the "
        "codec of its last copy to other writers.",
        example="zstd or snappy",
    )
    retention: Retention | int | Template = Retention()
    arrays: str = option(
        default=TEXT,
        accepts=one_of((TEXT, LIST), ("text: as the text of the array", "list: as lists")),
        feature="arrays",
        help="How to publish arrays whose elements have an Arrow type. `text`: as the server prints them. `list`: as "
        "lists, except in columns of the key and in tables without a key. A list has no dimensions and no bounds: "
        "`unrepresentable` decides about an array of several dimensions, an array whose lower bound is not 1, and an "
        "array with an element that no Arrow type holds.",
        example="text or list",
    )
    scratch: str = option(
        default="",
        accepts=URI_OR_EMPTY,
        title="Scratch",
        secret=True,
        help="The folder for the files and records of runs in progress, in the same form as `target`. Empty: `_runs` "
        "in the target. If the folder is in another store, files are copied when they are published. A run can roll "
        "forward only copies of runs with the same `scratch`. `targets` must allow this folder, too.",
        example="a URI such as s3://bucket/scratch",
    )
    storage_conn_id: str = option(
        default="",
        accepts=CONNECTION_OR_EMPTY,
        help="Connection to the object store of `target` and `scratch`, of type `aws`, `google_cloud_platform`, `wasb` "
        "or `adls`, with its credentials, endpoint and region. Airflow's tasks, Spark's driver and its executors use "
        "it. Empty: what they find in their environment, such as the role of the machine.",
        example="text such as aws_default",
    )
    partition_key: str = option(
        default="",
        accepts=PARTITION_KEY,
        help="A key of a partition, such as `{{ ds }}`. Each copy then has a second asset event, with this key, for "
        "DAGs that are scheduled on partitions of the table's asset. The tables must be named one by one. Empty: no "
        "partitions. Needs Airflow 3.3 or later.",
        example="text such as {{ ds }}",
    )
