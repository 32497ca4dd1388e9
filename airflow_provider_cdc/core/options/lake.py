"""The options that choose the format of the copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.options.arguments import of
from airflow_provider_cdc.core.options.declare import BY_NAME as BY_NAME
from airflow_provider_cdc.core.options.declare import CODECS as CODECS
from airflow_provider_cdc.core.options.declare import (
    CONNECTION,
    CONNECTION_OR_EMPTY,
    COUNT_OR_NONE,
    FLAG,
    URI,
    URI_OR_EMPTY,
    option,
)
from airflow_provider_cdc.core.options.declare import FORMATS as FORMATS
from airflow_provider_cdc.core.options.declare import NEW_COLUMN as NEW_COLUMN
from airflow_provider_cdc.core.options.declare import ORIGIN_IN_KEY as ORIGIN_IN_KEY
from airflow_provider_cdc.core.options.declare import REPLACE as REPLACE
from airflow_provider_cdc.core.options.declare import STOP as STOP


@dataclass(frozen=True)
class LakeOptions:
    """The options for the format of the published copies."""

    format: str = of("format")
    catalog_conn_id: str = of("catalog_conn_id")
    table_name: str = of("table_name")
    partition_by: Mapping[str, Sequence[str]] | None = of("partition_by")
    sort_by: Mapping[str, Sequence[str]] | None = of("sort_by")
    on_type_change: str = of("on_type_change")
    on_foreign_commit: str = of("on_foreign_commit")
    storage_conn_id: str = of("storage_conn_id")
    compression: str = of("compression")


# The options for merged tables: many tables of the source, published as one table.


@dataclass(frozen=True)
class MergeOptions:
    """The options for merged tables."""

    merge: Mapping[str, Sequence[str]] | None = of("merge")
    origin_columns: bool = of("origin_columns")
    on_collision: str = of("on_collision")
    vanished_shards: Sequence[str] | None = of("vanished_shards")
    column_order: str = of("column_order")


# The options of `CleanOperator`, and of the command ``python -m airflow_provider_cdc.clean``.


@dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """The options of a clean-up of one target."""

    source_conn_id: str = option(
        accepts=CONNECTION,
        help="Connection to the source, as the runs have it. Runs with another connection are not examined.",
        example="text such as cdc_mysql",
    )
    log_conn_id: str = option(
        "",
        accepts=CONNECTION_OR_EMPTY,
        help="PostgreSQL: connection to the standby from which the runs read the log (`Read.log_conn_id`). It has the "
        "slots of these runs. Empty: the log is read from the source.",
        example="text such as cdc_standby",
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
