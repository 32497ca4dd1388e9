"""The options that choose the format of the copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.declare import (
    COLUMNS,
    CONNECTION,
    CONNECTION_OR_EMPTY,
    COUNT_OR_NONE,
    FLAG,
    FOLDED,
    PATTERNS,
    TABLE_TEMPLATE,
    URI,
    URI_OR_EMPTY,
    one_of,
    option,
)

FORMATS = ("parquet", "iceberg")
_LISTS = replace(COLUMNS, plain=lambda value: COLUMNS.plain(value) or None)
STOP, NEW_COLUMN, REPLACE = "stop", "new_column", "replace"


@dataclass(frozen=True)
class LakeOptions:
    """The options for the format of the published copies."""

    format: str = option(
        "parquet",
        accepts=one_of(
            FORMATS,
            (
                "parquet: a folder of Parquet files for each copy",
                "iceberg: Iceberg tables, and cuts of all tables at one position",
            ),
        ),
        title="Format",
        section=FOLDED,
        help="The format of the copies. `parquet`: a folder of Parquet files for each copy, and `_latest.json`. "
        "`iceberg`: one snapshot of an Iceberg table for each copy, and one cut for each run. A reader of a cut sees "
        "all tables at one position. This format needs the extra `iceberg`.",
        example="parquet or iceberg",
    )
    catalog_conn_id: str = option(
        "",
        accepts=CONNECTION_OR_EMPTY,
        help="Connection of type `cdc_catalog` to the catalog of the Iceberg tables. Empty: a SQLite catalog in the "
        "file `_catalog.db` of the target. The target must then be on a local disk.",
        example="text such as cdc_catalog",
    )
    table_name: str = option(
        "{schema}.{table}",
        accepts=TABLE_TEMPLATE,
        help="A template for the names of the Iceberg tables, with the namespace. `{schema}` and `{table}` stand for "
        "the schema and the table in the source, `{source}` for the id of the source's connection.",
        example="text such as raw.{schema}_{table}",
    )
    partition_by: Mapping[str, Sequence[str]] | None = option(
        None,
        accepts=_LISTS,
        help="The partitioning of the Iceberg tables, by table name or pattern: a list of columns and of transforms of "
        'columns (`{"shop.orders": ["country", "month(created)", "bucket(16, id)"]}`). The transforms are `year`, '
        "`month`, `day` and `hour` of a time, `bucket(number, column)`, and `truncate(length, column)` of a text. It "
        "applies when the Iceberg table is created. One task writes at most 200 partitions.",
        example='an object such as {"shop.orders": ["month(created)"]}',
    )
    sort_by: Mapping[str, Sequence[str]] | None = option(
        None,
        accepts=_LISTS,
        help="The sort order of the Iceberg tables, by table name or pattern: a list of columns "
        '(`{"shop.orders": ["created desc", "id"]}`). It is a property of the table for programs that compact it. The '
        "files of a run are not sorted by it.",
        example='an object such as {"shop.orders": ["created"]}',
    )
    on_type_change: str = option(
        STOP,
        accepts=one_of(
            (STOP, NEW_COLUMN),
            ("stop: stop the run", "new_column: give such a column a new Iceberg column of its name"),
        ),
        help="How to treat a column whose type changed at the source, if Iceberg cannot widen the column to the new "
        "type (`int` to `text`): `stop` stops the run before it reads a row; `new_column` drops the Iceberg column and "
        "adds another one with the same name and the new type. Older snapshots keep the old column with its values.",
        example="stop or new_column",
    )
    on_foreign_commit: str = option(
        STOP,
        accepts=one_of(
            (STOP, REPLACE),
            ("stop: stop the run", "replace: publish the whole copy over it"),
        ),
        help="How to treat an Iceberg table whose rows another program changed since the last copy: `stop` stops the "
        "run; `replace` reads the table in full, and publishes the whole copy in place of all rows. The copy never has "
        "rows of both.",
        example="stop or replace",
    )
    storage_conn_id: str = option(
        "",
        accepts=CONNECTION_OR_EMPTY,
        help="Connection to the object store of `target` and `scratch`, of type `aws`, `google_cloud_platform`, `wasb` "
        "or `adls`, with its credentials, endpoint and region. Airflow's tasks, Spark's driver and its executors use "
        "it. Empty: what they find in their environment, such as the role of the machine.",
        example="text such as aws_default",
    )


# The options for merged tables: many tables of the source, published as one table.


FAIL, ORIGIN_IN_KEY = "fail", "origin_in_key"
FIRST_SHARD, BY_NAME = "first_shard", "name"
_MERGES = replace(COLUMNS, what="an object with a list of tables for each merged table; or null")
_SHARDS = replace(PATTERNS, what="a list of tables; or null", plain=lambda value: list(value or ()))


@dataclass(frozen=True)
class MergeOptions:
    """The options for merged tables."""

    merge: Mapping[str, Sequence[str]] | None = option(
        None,
        accepts=_MERGES,
        title="Merged tables",
        section=FOLDED,
        help="Merged tables, each with its shards: the tables of the run whose rows it has, by name or pattern "
        '(`{"shop.orders": ["shop_*.orders_*"]}`). The shards are published together, as one table, and not on their '
        "own. `tables` must match the shards, too. All shards need the same key and the same columns.",
        example='an object such as {"shop.orders": ["shop_*.orders_*"]}',
    )
    origin_columns: bool = option(
        False,
        accepts=FLAG,
        title="Origin columns",
        section=FOLDED,
        help="Add the columns `_source`, `_schema` and `_table` to merged tables: the connection, the schema and the "
        "table from which a row was copied.",
        example="true or false",
    )
    on_collision: str = option(
        FAIL,
        accepts=one_of(
            (FAIL, ORIGIN_IN_KEY),
            (
                "fail: do not publish the merged table",
                "origin_in_key: the origin is part of the key",
            ),
        ),
        title="Keys in several shards",
        section=FOLDED,
        help="What happens if several shards of a merged table have a row with the same key at the run's position. "
        "`fail`: the merged table fails, and the error names keys and shards. `origin_in_key`: such rows are "
        "different rows, because the origin columns are part of the merged table's key. Requires `origin_columns`.",
        example="fail or origin_in_key",
    )
    vanished_shards: Sequence[str] | None = option(
        None,
        accepts=_SHARDS,
        title="Shards that may be missing",
        section=FOLDED,
        help="Tables that were shards of the last copy of a merged table, and that may be missing now. Without this "
        "confirmation, a missing shard stops the merged table, because its rows would disappear.",
        example='a list such as ["shop_3.orders"]',
    )
    column_order: str = option(
        FIRST_SHARD,
        accepts=one_of(
            (FIRST_SHARD, BY_NAME), ("first_shard: as in the first shard, by name", "name: the key, and then by name")
        ),
        title="Order of the columns of merged tables",
        section=FOLDED,
        help="The order of a merged table's columns: `first_shard`: that of its first shard. `name`: the key, and then "
        "by name.",
        example="first_shard or name",
    )


# The options of `CleanOperator`, and of the command ``python -m airflow_provider_cdc.clean``.


@dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """The options of a clean-up of one target."""

    source_conn_id: str = option(
        accepts=CONNECTION,
        help="Connection to the source, as the runs have it. Runs with another connection are not examined.",
        example="text such as cdc_mysql",
    )
    target: str = option(
        accepts=URI,
        secret=True,
        help="The target of the runs.",
        example="a URI such as file:///data/lake or s3://bucket/lake",
    )
    scratch: str = option(
        "",
        accepts=URI_OR_EMPTY,
        secret=True,
        help="The `scratch` of the runs. Empty: `_runs` in the target.",
        example="a URI such as s3://bucket/scratch",
    )
    storage_conn_id: str = option(
        "",
        accepts=CONNECTION_OR_EMPTY,
        help="Connection to the object store, as the runs have it.",
        example="text such as aws_default",
    )
    days: int = option(
        7,
        accepts=COUNT_OR_NONE,
        help="Days for which the files of a failed DAG run stay after the last write, because its tasks may still be "
        "cleared. If Airflow does not know the DAG run, its files stay for at least 7 days.",
        example="a number such as 7",
    )
    dry_run: bool = option(
        False,
        accepts=FLAG,
        help="Remove nothing. Only list what would be removed, with the proof, and what stays, with the reason.",
        example="true or false",
    )
