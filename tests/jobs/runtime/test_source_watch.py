"""A read of several hours stops early if the log is gone, or if a table was altered."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import LogGone, LoginRefused, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.jobs.runtime import source_watch
from airflow_provider_cdc.jobs.snapshot import read as snapshot
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history

SECONDS = 3.0
PATIENCE = 60.0
"""A time limit that suffices for every wait, even on a busy machine."""


class Failing(HistorySource):
    """Raises ``error`` from the second check of whether it still has what the run needs."""

    error: Exception
    about = "check_identity"
    asked = 0
    wanted = 0

    def check_identity(self, identity: Facts, position: Position) -> None:
        self._ask("check_identity")

    def check_tables(self, tables: Sequence[Table]) -> None:
        self._ask("check_tables")

    def _ask(self, about: str) -> None:
        if about == self.about:
            self.asked += 1
            if self.asked > 1:
                raise self.error


@pytest.fixture
def source() -> Failing:
    return Failing(random_history(random.Random(3), 40), 3)


@pytest.fixture
def long_read(here: MakeRunner, source: Failing, monkeypatch: pytest.MonkeyPatch) -> MakeRunner:
    """Runs whose one task reads for ``SECONDS``, and on until the source was asked as often as a test wants it."""
    quick: Any = vars(snapshot)["run_tasks"]

    def slow(*arguments: Any, meanwhile: Callable[[], None], **more: Any) -> Any:
        began = time.monotonic()
        while time.monotonic() < began + SECONDS or (
            source.asked < source.wanted and time.monotonic() < began + PATIENCE
        ):
            meanwhile()
            time.sleep(0.01)
        return quick(*arguments, meanwhile=lambda: None, **more)

    monkeypatch.setattr(snapshot, "run_tasks", slow)
    return here


@pytest.mark.parametrize("about", ["check_identity", "check_tables"])
def test_what_is_over_ends_the_read_before_any_part_is_complete(
    long_read: MakeRunner, source: Failing, monkeypatch: pytest.MonkeyPatch, about: str
) -> None:
    monkeypatch.setattr(source_watch, "WATCH_SECONDS", 0.1)
    source.about = about
    # It would be asked on and on.
    source.wanted = 100
    source.error = LogGone("the slot is gone", where="slot", hint="begin anew")
    with pytest.raises(LogGone):
        long_read(source, 10).steps()[0]()
    # The run looks once more, for tables that were altered.
    assert source.asked == (2 if about == "check_identity" else 3)


@pytest.mark.slow
def test_a_server_that_does_not_answer_for_a_moment_does_not(
    long_read: MakeRunner, source: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watch, "WATCH_SECONDS", 0.1)
    source.wanted = 3
    source.error = SourceUnavailable("no answer", where="db", hint="wait")
    long_read(source, 10).steps()[0]()
    assert source.asked > 2


@pytest.mark.slow
def test_after_a_refused_login_the_read_goes_on_and_nothing_logs_in_again(
    long_read: MakeRunner, source: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watch, "WATCH_SECONDS", 0.1)
    source.error = LoginRefused("another password", where="db", hint="retry")
    long_read(source, 10).steps()[0]()
    assert source.asked == 2


@pytest.mark.slow
def test_it_is_not_asked_all_the_time(long_read: MakeRunner, source: Failing) -> None:
    source.error = LogGone("the slot is gone", where="slot", hint="begin anew")
    long_read(source, 10).steps()[0]()
    assert source.asked == 1


def altered(run: Pipeline, alter: Callable[[], object], reading: Callable[[], object]) -> float:
    """Alter a table once it is being read. How long the step took from there to its end."""
    at: list[float] = []

    def later() -> None:
        while not reading():
            time.sleep(0.05)
        alter()
        at.append(time.monotonic())

    thread = threading.Thread(target=later, daemon=True)
    thread.start()
    with pytest.raises(SchemaChanged, match="orders: its columns have changed"):
        run.snapshot()
    thread.join()
    return time.monotonic() - at[0]


@pytest.mark.slow
def test_mysql_ddl_ends_a_read_that_would_go_on_for_hours(
    spark: Any, mysql: MysqlServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watch, "WATCH_SECONDS", 0.5)
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note TEXT)")
    mysql.query(f"INSERT INTO {schema}.orders (id) VALUES " + ", ".join(f"({number})" for number in range(2000)))
    mysql.query(f"ANALYZE TABLE {schema}.orders")
    settings: ConnectionSettings = settings_of(mysql)
    run = Pipeline(
        spark, settings, tmp_path.as_uri(), [f"{schema}.*"], chunk_rows=100, chunk_pause=100.0, on_schema_change="fail"
    )
    run.record()
    took = altered(
        run,
        lambda: mysql.query(f"ALTER TABLE {schema}.orders ADD COLUMN more INT"),
        lambda: mysql.query("SELECT 1 FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep' AND TIME >= 1"),
    )
    assert took < PATIENCE


def test_mysql_ddl_before_the_reads_ends_the_step_before_it_reads(
    mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note TEXT)")
    run = Pipeline(None, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.*"], on_schema_change="fail")
    run.record()
    mysql.query(f"ALTER TABLE {schema}.orders MODIFY note VARCHAR(20)")
    with pytest.raises(SchemaChanged, match=r"orders: its columns have changed \(note\)"):
        run.snapshot()


def test_mysql_ddl_that_changes_no_row_is_none_of_the_watch_s_business(
    mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    run = Pipeline(None, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.*"], unrepresentable="string")
    run.record()
    mysql.query(f"ALTER TABLE {schema}.orders ADD INDEX (note), COMMENT 'new'")
    mysql.query(f"INSERT INTO {schema}.orders VALUES (1, 'x')")
    mysql.query(f"ANALYZE TABLE {schema}.orders")
    run.source.check_tables([entry.table for entry in Run.load(run.run).manifest.tables])
