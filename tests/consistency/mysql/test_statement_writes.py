"""Runs while another tool writes logged statements: exact if they reach no copied table, stopped if they may."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import ImageNotWhole
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of


@pytest.mark.slow
def test_a_run_beside_pt_table_checksum(mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path) -> None:
    other = f"percona_{schema}"
    mysql.query(f"CREATE DATABASE {other}")
    mysql.query(f"CREATE TABLE {other}.checksums (tbl CHAR(64) PRIMARY KEY, cnt INT, crc CHAR(40))")
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 1), (2, 2), (3, 3)")
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.t"])
    run.record()
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE {schema}.t SET v = 7 WHERE id = 2")
        cursor.execute("SET binlog_format = STATEMENT")
        cursor.execute(
            f"REPLACE INTO `{other}`.`checksums` SELECT 't', COUNT(*), "
            f"BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`, `v`)) AS UNSIGNED)) FROM `{schema}`.`t` /*checksum table*/"
        )
    run.snapshot()
    mysql.query(f"CREATE TRIGGER {other}.tr BEFORE INSERT ON {other}.checksums FOR EACH ROW SET NEW.cnt = 1")
    with pytest.raises(ImageNotWhole, match="has the trigger tr"):
        run.extract_delta()
    mysql.query(f"DROP TRIGGER {other}.tr")
    # That there was none while the statement ran is not known any more.
    with pytest.raises(ImageNotWhole, match="a view or trigger was created or dropped"):
        run.extract_delta()
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.t"], run_id="20260102T000000Z-00000000")
    run.record()
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM t WHERE id = 1")
        cursor.execute("SET binlog_format = STATEMENT")
        cursor.execute(f"REPLACE INTO {other}.checksums SELECT 'u', COUNT(*), '0' FROM t")
    found = run.finish()
    assert sorted(published(found["published"][f"{schema}.t"])[1]) == [(1, 1), (2, 7), (3, 3)]
    mysql.query(f"DROP DATABASE {other}")
