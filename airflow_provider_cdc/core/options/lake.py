"""The options that choose the format of the copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.declare import (
    COLUMNS,
    CONNECTION_OR_EMPTY,
    FOLDED,
    TABLE_TEMPLATE,
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
