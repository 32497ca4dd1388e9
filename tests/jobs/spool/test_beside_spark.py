"""The spool runs beside the reads of a Spark application, without a call of any test."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.jobs import spool as spooler
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of


@pytest.mark.slow
def test_pieces_are_taken_while_spark_reads(
    spark: Any,
    mysql: MysqlServer,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in (("POLL_SECONDS", 0.1), ("PIECE_BYTES", 1)):
        monkeypatch.setattr(spooler, name, value)
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note TEXT)")
    mysql.query(f"INSERT INTO {schema}.orders VALUES " + ", ".join(f"({number}, 'old')" for number in range(2000)))
    mysql.query(f"ANALYZE TABLE {schema}.orders")
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.*"], chunk_rows=100, chunk_pause=0.4)
    run.record()
    expected = Counter(mysql.query(f"SELECT * FROM {schema}.orders"))
    ended = threading.Event()

    def write() -> None:
        number = 0
        with mysql.connect() as connection, connection.cursor() as cursor:
            while not ended.wait(0.05):
                number += 1
                cursor.execute(f"UPDATE {schema}.orders SET note = 'new' WHERE id = {number * 37 % 2000}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        run.snapshot()
    finally:
        ended.set()
        writer.join()
    run.extract_delta()
    result = run.consolidate()
    assert Counter(published(result["published"][f"{schema}.orders"])[1]) == expected
    said = capfd.readouterr().out
    assert "spool: piece 2: " in said
    assert "of the log were spooled" in said
