"""An example to change: reads each new copy of `shop.accounts` with common libraries."""

from __future__ import annotations

from datetime import datetime

from airflow.configuration import conf
from airflow.sdk import DAG, task

from airflow_provider_cdc.assets import table_asset
from airflow_provider_cdc.lake import LatestCopy, open_dataset, read_latest

TABLE = "shop.accounts"
SOURCES = ("cdc_mysql", "cdc_postgres")


def latest_copies() -> dict[str, LatestCopy]:
    """Return the latest copy of each source that has one."""
    target = conf.get("cdc", "targets").split(",")[0].strip()
    found = {source: read_latest(target.replace("{source}", source), TABLE) for source in SOURCES}
    return {source: copy for source, copy in found.items() if copy is not None}


with DAG(
    "read_copies",
    description=f"An example: reads {TABLE} with PyArrow, DuckDB, pandas and Spark",
    doc_md=__doc__,
    schedule=table_asset(SOURCES[0], TABLE) | table_asset(SOURCES[1], TABLE),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    is_paused_upon_creation=False,
    tags=["example"],
):

    @task
    def with_pyarrow() -> None:
        for source, copy in latest_copies().items():
            rows = open_dataset(copy).to_table()
            print(f"{source}: {rows.num_rows:,} rows, exact at {copy.position}: {rows.column_names}")

    @task
    def with_duckdb() -> None:
        import duckdb

        for source, copy in latest_copies().items():
            found = duckdb.read_parquet(copy.locations).aggregate("count(*) AS accounts, sum(balance) AS money")
            print(f"{source}: {found.fetchall()}")

    @task
    def with_pandas() -> None:
        for source, copy in latest_copies().items():
            print(f"{source}:\n{open_dataset(copy).to_table().to_pandas().describe()}")

    @task
    def with_spark() -> None:
        from pyspark.sql import SparkSession

        with SparkSession.builder.master("local[1]").getOrCreate() as spark:
            for source, copy in latest_copies().items():
                print(f"{source}: {spark.read.parquet(*copy.locations).count():,} rows")

    with_pyarrow()
    with_duckdb()
    with_pandas()
    with_spark()
