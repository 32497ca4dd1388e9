"""Whole runs keep every file of a partitioned table in its partition, also if rows move to another one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import CdcError, PreflightError
from harness.mysql_server import MysqlServer
from tests.sinks.iceberg.test_nights import by_duckdb, by_polars, catalog_of, night
from tests.sinks.iceberg.test_partitions import assert_each_file_is_in_its_partition

EVENTS = """
CREATE TABLE {schema}.events (
    id INT NOT NULL PRIMARY KEY, country VARCHAR(20), at DATETIME(6) NOT NULL, v INT, note TEXT)
"""


@pytest.mark.slow
def test_rows_that_move_to_another_partition(
    spark: SparkSession, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(EVENTS.format(schema=schema))
    values = ", ".join(
        f"({n}, '{'de' if n % 2 else 'fr'}', '2026-0{n % 3 + 1}-15 00:00:00.5', {n}, 'n')" for n in range(600)
    )
    mysql.query(f"INSERT INTO {schema}.events VALUES {values}")
    layout: Any = {
        "partition_by": {f"{schema}.*": ["country", "month(at)"]},
        "sort_by": {f"{schema}.events": ["at desc"]},
    }
    for number in (1, 2, 3, 4):
        last = night(spark, mysql, schema, tmp_path, number, **layout)
        assert ("rolled forward" in last.plans[0].reason) == (number > 1), last.plans[0].reason
        truth = Counter(tuple(row) for row in mysql.query(f"SELECT * FROM {schema}.events"))
        catalog = catalog_of(tmp_path)
        assert Counter(by_duckdb(catalog, f"{schema}.events")) == truth
        assert Counter(by_polars(catalog, f"{schema}.events")) == truth
        table = catalog.load_table(f"{schema}.events")
        assert_each_file_is_in_its_partition(table)
        found = table.scan("country = 'moved'").to_arrow()["id"].to_pylist()
        assert Counter(found) == Counter(row[0] for row in truth if row[1] == "moved")
        # Within its partition, to a new one, to another one, away, and new.
        mysql.query(f"UPDATE {schema}.events SET v = -v WHERE id % 90 = {number}")
        mysql.query(f"UPDATE {schema}.events SET country = 'moved' WHERE id % 100 = {number}")
        mysql.query(f"UPDATE {schema}.events SET at = '2026-03-15', country = NULL WHERE id % 110 = {number}")
        mysql.query(f"DELETE FROM {schema}.events WHERE id % 120 = {number + 20}")
        mysql.query(f"INSERT INTO {schema}.events VALUES ({1000 + number}, 'new', '2026-01-01', 0, NULL)")
    # Another partitioning stops the run before it reads anything.
    with pytest.raises(CdcError, match="is partitioned by"):
        night(spark, mysql, schema, tmp_path, 5, partition_by={f"{schema}.events": ["country"]})
    with pytest.raises(PreflightError, match="it matches no table of the run"):
        night(spark, mysql, schema, tmp_path, 6, partition_by={"nowhere.events": ["country"]})
