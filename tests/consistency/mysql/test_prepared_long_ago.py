"""A transaction that was prepared long before the run, and is committed during it, is undone like any other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import ExactnessError, PreflightError
from airflow_provider_cdc.sources.mysql.log import survey
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.conftest import MysqlFactory


@pytest.fixture
def run(mysql_long_ago: MysqlServer, spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, settings_of(mysql_long_ago), tmp_path.as_uri(), ["shop.*"])


@pytest.fixture
def mysql_long_ago(mysql_factory: MysqlFactory) -> MysqlServer:
    """A server where a transaction is prepared, three log files before the current one."""
    server = mysql_factory({})
    # The server reports its start in whole seconds, and has no information about the time before its start.
    time.sleep(1.1)
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.stock (id INT PRIMARY KEY, left_over INT)",
            "INSERT INTO shop.stock VALUES (1, 10), (2, 20), (3, 30)",
            "SET xa_detach_on_prepare = ON",
            "XA START 'old'",
            "UPDATE shop.stock SET left_over = 0 WHERE id = 2",
            "INSERT INTO shop.stock VALUES (4, 40)",
            "XA END 'old'",
            "XA PREPARE 'old'",
            "FLUSH BINARY LOGS",
            "UPDATE shop.stock SET left_over = 11 WHERE id = 1",
            "FLUSH BINARY LOGS",
            "UPDATE shop.stock SET left_over = 12 WHERE id = 1",
            "FLUSH BINARY LOGS",
        ):
            cursor.execute(statement)
    return server


@pytest.mark.slow
@pytest.mark.parametrize("read_together", [False, True], indirect=True)
def test_what_was_prepared_files_ago_and_committed_meanwhile_is_rewound(
    mysql_long_ago: MysqlServer, run: Pipeline
) -> None:
    run.record()
    mysql_long_ago.query("XA COMMIT 'old'")
    found = run.finish()
    names, rows = published(found["published"]["shop.stock"])
    assert names == ["id", "left_over"]
    assert sorted(rows) == [(1, 12), (2, 20), (3, 30)]


@pytest.mark.slow
def test_a_log_that_does_not_reach_back_to_the_preparation_stops_the_run(
    mysql_long_ago: MysqlServer, run: Pipeline
) -> None:
    run.record()
    mysql_long_ago.query("XA COMMIT 'old'")
    run.snapshot()
    current = mysql_long_ago.query("SHOW BINARY LOG STATUS")[0][0]
    mysql_long_ago.purge_log(current)
    with pytest.raises(ExactnessError, match="prepared transaction X'6f6c64'"):
        run.extract_delta()


@pytest.mark.slow
def test_a_night_after_the_rows_of_a_prepared_transaction_were_purged_reads_in_full(
    mysql_long_ago: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Its commit is between the copies, and its rows are before both of them, so the run cannot roll forward."""

    def night(number: int, refresh: str) -> Pipeline:
        run_id = f"2026010{number}T000000Z-00000000"
        return Pipeline(
            spark, settings_of(mysql_long_ago), tmp_path.as_uri(), ["shop.*"], run_id=run_id, refresh=refresh
        )

    first = night(1, "full")
    first.record()
    first.finish()
    current = mysql_long_ago.query("SHOW BINARY LOG STATUS")[0][0]
    mysql_long_ago.query("UPDATE shop.stock SET left_over = 13 WHERE id = 1")
    second = night(2, "changes")
    second.record()
    second.finish()
    mysql_long_ago.query("XA COMMIT 'old'")
    # As long as the log has them, they are found.
    assert night(3, "auto").preflight()[0].base
    mysql_long_ago.purge_log(current)
    with pytest.raises(PreflightError, match="prepared transaction X'6f6c64'"):
        night(3, "changes").preflight()
    third = night(3, "auto")
    third.record()
    assert "read in full: since the copy: " in third.plans[0].reason
    found = third.finish()
    assert sorted(published(found["published"]["shop.stock"])[1]) == [(1, 13), (2, 0), (3, 30), (4, 40)]
    mysql_long_ago.query("UPDATE shop.stock SET left_over = 14 WHERE id = 1")
    fourth = night(4, "changes")
    fourth.record()
    found = fourth.finish()
    assert sorted(published(found["published"]["shop.stock"])[1]) == [(1, 14), (2, 0), (3, 30), (4, 40)]


@pytest.mark.slow
def test_a_past_before_the_commit_of_rows_that_were_purged_is_refused_before_any_work(
    mysql_long_ago: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    def run(as_of: str) -> Pipeline:
        target = tmp_path / str(len(list(tmp_path.iterdir())))
        target.mkdir()
        return Pipeline(spark, settings_of(mysql_long_ago), target.as_uri(), ["shop.*"], as_of=as_of)

    (position,) = mysql_long_ago.query("SELECT @@global.gtid_executed")[0]
    current = mysql_long_ago.query("SHOW BINARY LOG STATUS")[0][0]
    mysql_long_ago.query("XA COMMIT 'old'")
    mysql_long_ago.query("UPDATE shop.stock SET left_over = 13 WHERE id = 1")
    before = run(position)
    before.record()
    assert sorted(published(before.finish()["published"]["shop.stock"])[1]) == [(1, 12), (2, 20), (3, 30)]
    mysql_long_ago.purge_log(current)
    with pytest.raises(PreflightError, match=r"(?s)prepared transaction X'6f6c64'.*set `as_of` to 2"):
        run(position).preflight()
    (position,) = mysql_long_ago.query("SELECT @@global.gtid_executed")[0]
    mysql_long_ago.query("UPDATE shop.stock SET left_over = 15 WHERE id = 1")
    after = run(position)
    after.record()
    assert sorted(published(after.finish()["published"]["shop.stock"])[1]) == [(1, 13), (2, 0), (3, 30), (4, 40)]


@pytest.mark.parametrize("way", [pytest.param("refresh", marks=pytest.mark.long), "as_of"])
def test_rows_that_are_purged_while_they_are_looked_for_are_rows_that_were_purged(
    way: str, mysql_long_ago: MysqlServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may purge old files at any time, even a file that the survey was about to read."""
    (position,) = mysql_long_ago.query("SELECT @@global.gtid_executed")[0]
    current = mysql_long_ago.query("SHOW BINARY LOG STATUS")[0][0]

    def run(number: int, **options: Any) -> Pipeline:
        run_id = f"2026010{number}T000000Z-00000000"
        return Pipeline(spark, settings_of(mysql_long_ago), tmp_path.as_uri(), ["shop.*"], run_id=run_id, **options)

    if way == "refresh":
        first = run(1)
        first.record()
        first.finish()
    mysql_long_ago.query("XA COMMIT 'old'")
    before, purged = survey._before, []

    def purging(names: Sequence[str], begin: LogPlace) -> Iterator[tuple[str, int | None]]:
        for number, found in enumerate(before(names, begin)):
            if number == 1:
                purged.append(current)
                mysql_long_ago.query(f"PURGE BINARY LOGS TO '{current}'")
            yield found

    monkeypatch.setattr(survey, "_before", purging)
    if way == "as_of":
        with pytest.raises(
            PreflightError, match=r"(?s)prepared transaction X'6f6c64'.*cannot read the log file.*set `as_of` to 2"
        ):
            run(1, as_of=position).preflight()
    else:
        with pytest.raises(PreflightError, match=r"prepared transaction X'6f6c64'.*cannot read the log file"):
            run(2, refresh="changes").preflight()
        second = run(2, refresh="auto")
        second.record()
        assert "read in full: since the copy: " in second.plans[0].reason
        found = second.finish()
        assert sorted(published(found["published"]["shop.stock"])[1]) == [(1, 12), (2, 0), (3, 30), (4, 40)]
    assert purged
