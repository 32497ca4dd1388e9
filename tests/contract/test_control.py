"""Operators pause, slow and stop a run in progress, on a real server under load. What was read stays, nothing is held,
and the copies are exact."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.control import acts, effective
from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.core.options.run import LimitOptions
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, RunStopped
from airflow_provider_cdc.jobs.runtime import controller
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import check_load
from harness.pipeline import Pipeline, published_counts
from harness.s3_server import s3_environment
from tests.contract.databases import Database, Row
from tests.soon import SECONDS, soon

KEYED, KEYLESS = 1200, 400
TABLES = ("accounts", "visits")
QUIET_SECONDS = 2.2
"""Longer than `turn.READ_SECONDS`: by then, every worker knows what it may do."""


@pytest.fixture
def shop(db: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(controller, "POLL_SECONDS", 0.1)
    db.create("accounts", "id INT PRIMARY KEY, amount INT")
    db.create("visits", "a INT")
    db.create("ops", "behind INT")
    db.insert("accounts", [(n, n) for n in range(KEYED)])
    db.insert("visits", [(n % 50,) for n in range(KEYLESS)])
    db.insert("ops", [(0,)])
    for name in TABLES:
        db.analyze(name)
    return db


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URI of a lake on a disk, or on S3, where the driver and Spark's workers find it by their environment."""
    if getattr(request, "param", "disk") == "disk":
        yield tmp_path.as_uri()
        return
    more = s3_environment(request.getfixturevalue("s3"))
    workers = request.getfixturevalue("spark").sparkContext.environment
    before = dict(workers)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in more.items():
            patch.setenv(name, value)
        workers.update(more)
        yield f"s3://lake/{tmp_path.name}"
    workers.clear()
    workers.update(before)


def make(db: Database, spark: SparkSession, lake: str, consistency: str = "auto", **limits: Any) -> Pipeline:
    tables = [str(db.name(name)) for name in TABLES]
    options: Any = {"consistency": consistency, "chunk_rows": 100, "limits": LimitOptions(**limits)}
    return Pipeline(spark, db.settings, lake, tables, **options)


def write(db: Database, moment: int) -> None:
    db.execute(
        f"UPDATE accounts SET amount = amount + 1000 WHERE id BETWEEN {moment * 90} AND {moment * 90 + 200}",
        f"DELETE FROM accounts WHERE id = {moment * 7 + 3}",
        f"INSERT INTO accounts VALUES ({5000 + moment}, 0)",
        f"UPDATE visits SET a = 100 + {moment} WHERE a = {moment}",
    )


def check_quiet(db: Database) -> None:
    """Wait until no session of the run is on the server, and until it stays so."""
    deadline, quiet_since = time.monotonic() + SECONDS, time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        assert time.monotonic() < deadline, "the paused run still uses the server"
        if db.sessions():
            quiet_since = time.monotonic()
        time.sleep(0.02)


def said(run: Pipeline) -> list[str]:
    return [event.what for event in acts.read(run.run).events]


def holds(condition: Callable[[], bool], step: Future[Any]) -> None:
    def look() -> bool:
        assert not step.done(), step.result()
        return condition()

    soon(look, True)


@contextmanager
def in_background(run: Pipeline) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(run.snapshot)
        except BaseException:
            # A paused step would never end.
            with suppress(ConfigurationError):
                act_on(run.run, "stop", "the test")
            raise


def reading(run: Pipeline) -> bool:
    return bool(effective.read(run.run).readers)


def published_of(db: Database, run: Pipeline) -> dict[str, Counter[Row]]:
    uris = run.found["consolidate"]["published"]
    return {name: published_counts(uris[str(db.name(name))])[1] for name in TABLES}


@pytest.mark.slow
@pytest.mark.parametrize("lake", ["disk", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
def test_a_run_under_load_is_limited_slowed_paused_and_resumed_and_is_exact(
    shop: Database, spark: SparkSession, lake: str
) -> None:
    query = f"SELECT behind FROM {shop.schema}.ops"
    run = make(shop, spark, lake, max_rows_per_second=200, governor={query: 5})
    try:
        run.record()
        expected = {name: shop.rows(name) for name in TABLES}
        act_on(run.run, "pause", "ann", "before the sale")
        with in_background(run) as step:
            # A step of a paused run begins with a wait, as after a clear or a restart of Airflow.
            holds(lambda: said(run) == ["paused"], step)
            assert not shop.sessions()
            assert not run.run.exists("chunks/plan.json")
            act_on(run.run, "resume", "ann")
            holds(lambda: reading(run), step)
            write(shop, 1)

            shop.execute("UPDATE ops SET behind = 7")
            holds(lambda: effective.read(run.run).state == effective.HOLD, step)
            write(shop, 2)
            shop.execute("UPDATE ops SET behind = 5")
            holds(lambda: effective.read(run.run).share == 1.0, step)

            act_on(run.run, "pause", "ben", "during the sale")
            check_quiet(shop)
            write(shop, 3)
            if slot := Run.load(run.run).manifest.identity.slot:
                # The slot and its publication have the same name.
                assert shop.kept() == [slot] or set(shop.kept()) == {slot}
                assert slot in acts.read(run.run).events[-1].why
            else:
                assert shop.kept() == []
            act_on(run.run, "limit", "ben", max_rows_per_second=0, max_reads=1)
            act_on(run.run, "resume", "ben")
            step.result(240)
        write(shop, 4)
        run.extract_delta()
        run.consolidate()
    finally:
        run.release()
    assert published_of(shop, run) == expected
    log = acts.read(run.run)
    names = [event.what for event in log.events]
    slowed = ["slowed to 50%", "slowed to 25%", "slowed to 12%", "held by the governor"]
    assert names[:2] == ["paused", "resumed"]
    assert [what for what in names if what in slowed][:4] == slowed
    assert {"back to 12%", "back to 25%", "back to 50%", "back to 100%"} <= set(names)
    assert names[-3:] == ["paused", "limits changed", "resumed"]
    assert log.events[names.index("slowed to 50%")].why == f"{query} is 7, above 5"
    assert "ben: during the sale" in log.events[-3].why
    assert log.paused_seconds >= QUIET_SECONDS
    assert log.slowed_seconds > 0
    with pytest.raises(ConfigurationError, match="has published its copies"):
        act_on(run.run, "pause", "ann")


@pytest.mark.long
def test_a_stopped_run_publishes_nothing_and_may_begin_anew(shop: Database, spark: SparkSession, lake: str) -> None:
    run = make(shop, spark, lake, shop.at_one_position, max_rows_per_second=50)
    try:
        run.record()
        with in_background(run) as step:
            holds(lambda: reading(run), step)
            act_on(run.run, "pause", "ann")
            # All chunks of a table are read in one transaction: it ends.
            check_quiet(shop)
            act_on(run.run, "stop", "ann", "the wrong tables")
            with pytest.raises(RunStopped, match="by ann: the wrong tables"):
                step.result(60)
        shop.wait_for_no_session()
        for again in (run.snapshot, run.extract_delta, run.consolidate):
            with pytest.raises(RunStopped):
                again()
        with pytest.raises(ConfigurationError, match="was stopped"):
            act_on(run.run, "resume", "ann")
        assert not run.target.exists(f"{shop.name('accounts')}/_latest.json")
        run.release()
        assert shop.kept() == []
        # Whoever clears `lock_and_record` begins the run again.
        write(shop, 1)
        expected = {name: shop.rows(name) for name in TABLES}
        run.record()
        act_on(run.run, "limit", "ann", max_rows_per_second=0)
        run.finish()
    finally:
        run.release()
    assert published_of(shop, run) == expected


def test_signals_of_the_governor_are_measured_and_wrong_ones_are_refused_before_a_run(shop: Database) -> None:
    source = open_source(shop.settings)
    primary_only = {"replica_lag_seconds"} if shop.kind == "mysql" else set()
    names = sorted(source.load_signals - primary_only)
    numbers = source.load([*names, "SELECT 2 % 3"])
    assert numbers["SELECT 2 % 3"] == 2
    assert all(numbers[name] >= 0 for name in names)
    wrong = (
        "SELECT 1, 2",
        "SELECT NULL",
        "SELECT 'text'",
        "SELECT behind FROM nowhere.ops",
        "SELECT 1; DELETE FROM ops",
        "UPDATE ops SET behind = 1",
        "threads_asleep",
        *primary_only,
    )
    with pytest.raises(PreflightError) as refused:
        check_load(source, [*names, "SELECT 1", *wrong])
    assert [problem.where for problem in refused.value.problems] == [
        f"parameter governor (Limits.governor), {one}" for one in wrong
    ]
    assert shop.rows("ops") == Counter([(0,)])
