"""The next run releases the slots and publications of DAG runs that a user ended while none of their tasks ran."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_cdc import Allow, SnapshotTaskGroup
from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.operators.base import run_id_for
from airflow_provider_cdc.sources.postgres import PostgresSource
from harness.postgres_server import PostgresServer
from tests.runs import commit, manifest_of
from tests.sources.postgres.log.reading import settings as settings_of

EARLIER = SimpleNamespace(dag_id="d", run_id="earlier", run_after=datetime(2026, 1, 1, tzinfo=UTC))
DELETED = SimpleNamespace(dag_id="d", run_id="deleted", run_after=datetime(2025, 1, 1, tzinfo=UTC))
OPTIONS: Any = {"chunk_rows": 7, "chunk_pause": 0.0}
Begin = Callable[..., Run]
Preflight = Callable[..., None]


@pytest.fixture
def source(postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch) -> PostgresSource:
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_postgres", **fields}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    postgres.query(
        "CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL", database=database
    )
    return PostgresSource(settings_of(postgres, database))


@pytest.fixture
def begin(source: PostgresSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begins a run of the DAG run `EARLIER`, or of another one that the arguments name, and never ends it."""
    begun = []

    def begin(
        task_id: str = "lock_and_record",
        lake: str = "lake",
        map_index: int | None = None,
        dag_run: Any = EARLIER,
        **more: Any,
    ) -> Run:
        place = Storage((tmp_path / lake).as_uri())
        monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", dag_run.dag_id)
        monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", dag_run.run_id)
        run_id = run_id_for(dag_run, task_id, place.uri, map_index)
        initial = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), run_id)
        begun.append(initial.identity)
        manifest = manifest_of(
            place,
            run_id,
            kind="postgres",
            position_key="initial_lsn",
            initial_position=str(initial.position),
            identity=initial.identity,
            tables=tuple(RunTable(table, "watermark", "") for table in initial.tables),
            options=StepOptions(**OPTIONS | more),
        )
        return Run.create(manifest)

    yield begin
    for identity in begun:
        source.discard(identity)


@pytest.fixture
def preflight(tmp_path: Path) -> Preflight:
    """Runs preflight of the next DAG run. ``state`` is Airflow's state of the previous DAG run."""

    def preflight(state: Any, *, map_index: int = -1, **options: Any) -> None:
        target = (tmp_path / "lake").as_uri()
        given = {"source_conn_id": "shop", "tables": ["public.*"], "spark_conn_id": "spark", **options}
        with DAG("d", schedule=None) as dag:
            group = SnapshotTaskGroup.of_options({"target": target, **given}, Allow())

        def told(dag_id: str, run_id: str) -> str:
            assert (dag_id, run_id) in (("d", "earlier"), ("d", "deleted"))
            if isinstance(state, Exception) or run_id == "deleted":
                raise state if isinstance(state, Exception) else RuntimeError("DAGRUN_NOT_FOUND")
            return str(state)

        names = {"dag_id": "d", "task_id": "preflight", "map_index": map_index}
        context: Any = {"dag": dag, "dag_run": SimpleNamespace(conf={})}
        context["ti"] = SimpleNamespace(**names, xcom_push=lambda **_: None, get_dagrun_state=told)
        group.preflight.execute(context)

    return preflight


def kept(server: PostgresServer, source: PostgresSource) -> tuple[int, int]:
    """How many slots and how many publications."""
    ((slots, publications),) = server.query(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE NOT temporary), (SELECT count(*) FROM pg_publication)",
        database=source.settings.database,
    )
    return slots, publications


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ("failed", 0),
        ("success", 0),
        ("running", 1),
        ("queued", 1),
        # The DAG run was deleted, or Airflow does not answer: the run may still go on.
        (RuntimeError("DAGRUN_NOT_FOUND"), 1),
    ],
)
def test_what_a_dag_run_kept_that_was_marked_while_no_task_ran_goes_with_the_next_run(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, preflight: Preflight, state: Any, left: int
) -> None:
    begin()
    assert kept(postgres, source) == (1, 1)
    preflight(state, plan_only=True)
    assert kept(postgres, source) == (1, 1), "a plan changes nothing"
    preflight(state)
    assert kept(postgres, source) == (left, left)


@pytest.mark.parametrize(
    "other", [{"task_id": "shop.lock_and_record"}, {"lake": "another"}, {"map_index": 0}, {"keep_slot": True}]
)
def test_what_others_keep_stays(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, preflight: Preflight, other: dict[str, Any]
) -> None:
    """Another group of that DAG run, another deployment, another source of a mapped group; a slot that is to stay."""
    run = begin(**other)
    if "keep_slot" in other:
        commit(run)
    preflight("success")
    assert kept(postgres, source) == (1, 1)


@pytest.mark.slow
def test_each_source_of_a_mapped_group_has_its_own(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, preflight: Preflight
) -> None:
    for index in range(2):
        begin(map_index=index)
    preflight("failed", map_index=1)
    assert kept(postgres, source) == (1, 1)


@pytest.mark.slow
def test_a_dag_run_that_was_deleted_keeps_no_other_from_being_released(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, preflight: Preflight
) -> None:
    begin(dag_run=DELETED)
    begin()
    preflight("failed")
    ((left,),) = postgres.query("SELECT slot_name::text FROM pg_replication_slots WHERE NOT temporary")
    assert left.startswith("cdc_2025")


def test_a_slot_that_cannot_be_dropped_stops_no_run(
    postgres: PostgresServer,
    source: PostgresSource,
    begin: Begin,
    preflight: Preflight,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin()
    with caplog.at_level(logging.INFO), monkeypatch.context() as patch:
        patch.setattr(PostgresSource, "release", lambda self, run_id: 1 / 0)
        preflight("failed")
    assert kept(postgres, source) == (1, 1)
    assert "Could not look for replication slots" in caplog.text
    assert "may be in progress" in caplog.text
    preflight("failed")
    assert kept(postgres, source) == (0, 0)
