"""The options that choose the format of the copies."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import CONNECTION_OR_EMPTY, FOLDED, TABLE_TEMPLATE, one_of, option

FORMATS = ("parquet", "iceberg")


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
