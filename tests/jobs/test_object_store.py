"""A complete run into an object store, which has no folders, no moves and no locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings, using
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import ChangesMissing, ConfigurationError, StorageRefused
from airflow_provider_cdc.lake import open_dataset, read_changes, read_latest
from harness.http_faults import Faults, http_faults
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from harness.s3_server import ADMIN, READER, s3_environment
from tests.consistency.replaying import Row, replayed, rows_of


@pytest.fixture
def on_s3(s3: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The driver and Spark's workers find the store by their environment."""
    workers = spark.sparkContext.environment
    before = dict(workers)
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
        workers[name] = value
    yield
    workers.clear()
    workers.update(before)


MOST_REQUESTS = 230
"""The requests of one run with two small tables. Each costs money, and time if the store is far away."""
POLLED = ("control%2Facts", "control/effective", "control%2Feffective", "progress.json", "under-way")
"""Parts of the paths of files that a run reads or writes every few seconds. They are not counted, because a slower
machine has more of them."""


@pytest.fixture
def by_connection(s3: str) -> Iterator[Faults]:
    """The driver and Spark's workers get the settings of a connection. The environment does not lead to the store."""
    with http_faults(s3) as proxy:
        options = {"access_key": ADMIN[0], "secret_key": ADMIN[1], "region": "us-east-1", "endpoint": proxy.endpoint}
        with using(StorageSettings("s3", options)):
            yield proxy


@pytest.mark.slow
def test_a_run_is_exact_on_s3_and_its_head_goes_forward(
    spark: SparkSession, mysql: MysqlServer, schema: str, by_connection: Faults
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v varchar(20))")
    mysql.query(f"CREATE TABLE {schema}.none (id int)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    target = f"s3://lake/{schema}%20raw"

    def run_of(run_id: str) -> Pipeline:
        return Pipeline(spark, settings_of(mysql), target, [f"{schema}.*"], run_id=run_id, chunk_rows=2)

    early = run_of("20260102T150000Z-00000000")
    early.record()
    mysql.query(f"UPDATE {schema}.t SET v = 'later' WHERE id = 2")
    mysql.query(f"DELETE FROM {schema}.t WHERE id = 1")
    # Scheduled earlier, at a later position.
    late = run_of("20260102T020000Z-00000000")
    late.record()
    by_connection.clear()
    found = late.finish()
    requests = [f"{request.method} {request.path}" for request in by_connection.requests]
    requests = [request for request in requests if not any(polled in request for polled in POLLED)]
    assert len(requests) <= MOST_REQUESTS, "\n".join(requests)
    assert published(found["published"][f"{schema}.t"])[1] == [(2, "later"), (3, "three")]
    assert published(found["published"][f"{schema}.none"]) == (["id"], [])
    found = early.finish()
    assert sorted(published(found["published"][f"{schema}.t"])[1]) == [(1, "one"), (2, "two"), (3, "three")]
    lake = Storage(target)
    latest = lake.read_json(f"{schema}.t/_latest.json")
    assert latest["run_id"] == "20260102T020000Z-00000000"
    assert latest["position"] == latest["initial_gtid_set"] == Run.load(late.run).manifest.initial_position
    assert latest["source"] == {"kind": "mysql", "server": mysql.query("SELECT @@server_uuid")[0][0]}
    assert late.run.read_json("latest.json") == {f"{schema}.t": True, f"{schema}.none": True}
    assert early.run.read_json("latest.json") == {f"{schema}.t": False, f"{schema}.none": False}
    assert set(Storage("s3://lake").folders()) >= {f"{schema} raw"}


@pytest.mark.long
@pytest.mark.usefixtures("on_s3")
def test_a_copy_is_rolled_forward_on_s3_by_runs_whose_scratch_is_a_disk(
    spark: SparkSession, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v varchar(20))")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    target, rows = f"s3://lake/{schema}-far", [(1, "one"), (2, "two"), (3, "three")]
    for night in (1, 2):
        run = Pipeline(
            spark,
            settings_of(mysql),
            target,
            [f"{schema}.t"],
            scratch=tmp_path.as_uri(),
            run_id=f"2026010{night}T000000Z-00000000",
            chunk_rows=2,
            refresh="auto",
        )
        run.record()
        assert bool(run.plans[0].base) == (night == 2)
        found = run.finish()
        assert sorted(published(found["published"][f"{schema}.t"])[1]) == rows
        mysql.query(f"UPDATE {schema}.t SET v = 'later' WHERE id = 2")
        rows[1] = (2, "later")
    assert not Storage(target).exists("_runs")
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.long
@pytest.mark.usefixtures("on_s3")
def test_older_copies_are_removed_on_s3_but_those_of_a_table_that_was_left_out(
    spark: SparkSession, mysql: MysqlServer, schema: str
) -> None:
    mysql.query(f"CREATE TABLE {schema}.`odd ü name` (id int PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.`odd ü name` VALUES (1), (2), (3)")
    mysql.query(f"CREATE TABLE {schema}.days (id int PRIMARY KEY, day date)")
    mysql.query(f"INSERT INTO {schema}.days VALUES (1, '2026-01-01')")
    target = f"s3://lake/{schema}-kept"
    lake = Storage(target)
    ids = [f"2026010{number}T000000Z-00000000" for number in (1, 2, 3)]

    def night(number: int) -> dict[str, Any]:
        tables = [f"{schema}.*"]
        run = Pipeline(
            spark, settings_of(mysql), target, tables, run_id=ids[number], on_table_error="skip", refresh="auto", keep=1
        )
        run.record()
        return run.finish()

    def left() -> list[list[int]]:
        folders = {name: lake.folders(name) for name in lake.folders() if not name.startswith("_")}
        found = [[one.rpartition("=")[2] for one in own if "=" in one] for own in folders.values()]
        # This store still lists empty folders.
        runs = [one.rpartition("/")[2] for one in lake.folders("_runs") if Run.exists(lake.folder(one))]
        return [[ids.index(one) for one in own] for own in [*found, runs]]

    night(0)
    mysql.query(f"INSERT IGNORE INTO {schema}.days VALUES (2, '0000-00-00')")
    assert list(night(1)["skipped"]) == [f"{schema}.days"]
    assert left() == [[0], [1], [0, 1]]
    mysql.query(f"DELETE FROM {schema}.days WHERE id = 2")
    found = night(2)
    assert left() == [[2], [2], [2]]
    assert sorted(published(found["published"][f"{schema}.odd ü name"])[1]) == [(1,), (2,), (3,)]


@pytest.mark.long
@pytest.mark.usefixtures("on_s3")
@pytest.mark.parametrize("scratch", ["in the lake", "on a disk"])
def test_changes_are_published_on_s3_and_go_with_their_copies(
    scratch: str, spark: SparkSession, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    name, target = f"{schema}.odd ü name", f"s3://lake/{schema}-fed"
    mysql.query(f"CREATE TABLE {schema}.`odd ü name` (id int PRIMARY KEY, v varchar(20))")
    mysql.query(f"INSERT INTO {schema}.`odd ü name` VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    ids = [f"2026010{number}T000000Z-00000000" for number in range(1, 5)]
    copies: list[Counter[Row]] = []

    def night(number: int, keep: int = 0) -> None:
        run = Pipeline(
            spark,
            settings_of(mysql),
            target,
            [f"{schema}.*"],
            scratch=tmp_path.as_uri() if scratch == "on a disk" else "",
            run_id=ids[number],
            refresh="auto",
            changes=True,
            keep=keep,
        )
        run.record()
        run.finish()
        copy = read_latest(target, name)
        assert copy is not None
        assert copy.run_id == ids[number]
        copies.append(rows_of(open_dataset(copy).to_table()))

    def leads(since: int) -> bool:
        """Whether the changes since a copy make the latest one of it."""
        changes = open_dataset(read_changes(target, name, ids[since])).to_table()
        return replayed(copies[since], ["id"], changes) == copies[-1]

    for number in range(3):
        night(number)
        assert all(leads(since) for since in range(number))
        mysql.query(f"UPDATE {schema}.`odd ü name` SET v = 'later', id = id + 10 WHERE id = 2 + 10 * {number}")
        mysql.query(f"DELETE FROM {schema}.`odd ü name` WHERE id = 1 + 2 * {number}")
        mysql.query(f"INSERT INTO {schema}.`odd ü name` VALUES (100 + {number}, 'new')")
    assert len({frozenset(copy.items()) for copy in copies}) == 3
    night(3, keep=2)
    # The changes of the older copy that is kept begin at the one before it.
    assert leads(2)
    assert leads(1)
    with pytest.raises(ChangesMissing):
        read_changes(target, name, ids[0])
    lake, folder = Storage(target), f"{folder_name(TableName.parse(name))}/_changes"
    # This store still lists empty folders.
    assert sorted(one.rpartition("/")[2] for one in lake.folders(folder) if lake.files(one)) == ids[2:]


@pytest.mark.slow
@pytest.mark.usefixtures("on_s3")
def test_rights_that_are_taken_away_in_mid_run_stop_it_for_good(
    spark: SparkSession, mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1)")
    run = Pipeline(spark, settings_of(mysql), f"s3://lake/{schema}", [f"{schema}.t"])
    run.record()
    workers = spark.sparkContext.environment
    for name, value in (("AWS_ACCESS_KEY_ID", READER[0]), ("AWS_SECRET_ACCESS_KEY", READER[1])):
        workers[name] = value
    with pytest.raises(StorageRefused, match="denies access") as refusal:
        run.snapshot()
    assert isinstance(refusal.value, ConfigurationError)
    assert f"s3://lake/{schema}" in str(refusal.value)
