"""Clearing lock_and_record alone is as safe as clearing every task: on a real server that crashed or was reset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.operators import lock_and_record
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.sources.api.registry import open_source
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from tests.servers import throw_away_mysql


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    with throw_away_mysql({"innodb_native_foreign_keys": "ON"}) as started:
        yield started


@pytest.fixture
def operator(server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockAndRecordOperator:
    server.query("DROP DATABASE IF EXISTS d")
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.parent (id INT PRIMARY KEY)")
    server.query("CREATE TABLE d.child (id INT PRIMARY KEY, p INT)")
    source = open_source(settings_of(server))
    monkeypatch.setattr(lock_and_record, "open_source_with_replicas", lambda *connections: source)
    return LockAndRecordOperator(
        task_id="lock_and_record",
        source_conn_id="shop",
        target=tmp_path.as_uri(),
        plan=encode(source.preflight(["d.*"])),
        options={"lock": asdict(LockPolicy())},
    )


def context() -> Any:
    everything = SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="t",
        map_index=-1,
        try_number=1,
        run_after=datetime(2026, 1, 1, tzinfo=UTC),
        xcom_push=lambda **_: None,
    )
    return {"dag_run": everything, "ti": everything}


@pytest.mark.slow
def test_after_a_crash_the_run_begins_anew(operator: LockAndRecordOperator, server: MysqlServer) -> None:
    first = operator.execute(context())
    server.query("INSERT INTO d.parent VALUES (1)")
    assert operator.execute(context()) == first
    server.crash()
    again = operator.execute(context())
    assert again["run_uri"] == first["run_uri"]
    assert again["initial_gtid_set"] != first["initial_gtid_set"]
    identity = Run.load(Storage(again["run_uri"])).manifest.identity
    assert operator.execute(context()) == again
    assert Run.load(Storage(again["run_uri"])).manifest.identity == identity


@pytest.mark.slow
def test_a_new_position_is_not_taken_from_what_can_no_longer_be_copied(
    operator: LockAndRecordOperator, server: MysqlServer
) -> None:
    operator.execute(context())
    server.crash()
    server.query("ALTER TABLE d.child ADD FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE")
    with pytest.raises(AirflowFailException, match="through foreign keys"):
        operator.execute(context())


@pytest.mark.slow
def test_another_history_is_not_taken_for_the_run_s_own(operator: LockAndRecordOperator, server: MysqlServer) -> None:
    operator.execute(context())
    server.query("RESET BINARY LOGS AND GTIDS")
    with pytest.raises(AirflowFailException, match="the log was reset"):
        operator.execute(context())
    server.query("CREATE DATABASE IF NOT EXISTS other")
