"""A run that fails for good leaves nothing on its source, and a run that will be retried keeps what it needs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from airflow.dag_processing import processor
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout
from airflow.sdk.execution_time import task_runner

from airflow_provider_cdc import Read, SnapshotTaskGroup
from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.release import check_not_released
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.errors import LogGone
from airflow_provider_cdc.jobs.begin.initial_position import begin
from airflow_provider_cdc.operators.base import run_id_for, run_id_of
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.operators.spark.launchers.client.launcher import ClientLauncher
from airflow_provider_cdc.operators.spark.launchers.registry import Job
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.slots import waits
from harness.postgres_server import PostgresServer
from tests.runs import commit, manifest_of, publish
from tests.sources.postgres.log.reading import settings as settings_of

OPTIONS = {"chunk_rows": 7, "chunk_pause": 0.0, "lock": {}, "keep_slot": False}


@pytest.fixture
def context(tmp_path: Any) -> Any:
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "task": None, "xcom_push": lambda **_: None}
    everything = SimpleNamespace(**names, run_after=datetime(2026, 1, 1, 12, 30, tzinfo=UTC))
    return {"dag_run": everything, "ti": everything}


@pytest.fixture
def in_dag_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow parses a DAG where it would call the DAG's callbacks."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")


@pytest.fixture
def source(postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch) -> PostgresSource:
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_postgres", **fields}))
    postgres.query(
        "CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL", database=database
    )
    return PostgresSource(settings_of(postgres, database))


@pytest.fixture
def run(source: PostgresSource, context: Any, tmp_path: Any) -> Iterator[Storage]:
    """A run that has begun: the server keeps a slot for it."""
    run = begin_run(source, run_id_of(context, tmp_path.as_uri()), tmp_path)
    yield run
    source.discard(Run.load(run).manifest.identity)


def begin_run(source: PostgresSource, run_id: str, target: Any, **options: Any) -> Storage:
    initial = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), run_id)
    tables = [RunTable(table, "watermark", "") for table in initial.tables]
    manifest = manifest_of(
        Storage(target.as_uri()),
        run_id,
        kind="postgres",
        position_key="initial_lsn",
        initial_position=str(initial.position),
        identity=initial.identity,
        tables=tuple(tables),
        options=StepOptions(**{**OPTIONS, **options}),
    )
    return Run.create(manifest).folder


def begin_again(source: PostgresSource, run: Storage, target: Any) -> Storage:
    """What lock_and_record does when it is cleared and the slot is gone."""
    plans, run_id = source.preflight(["public.stock"]), run.uri.rpartition("/")[2]
    options = Run.load(run).manifest.options
    record = partial(source.record_initial, plans, LockPolicy(), run_id)
    return begin(source, plans, options, record, run_id=run_id, lake=target.as_uri()).folder


def kept(server: PostgresServer) -> int:
    return len(server.query("SELECT 1 FROM pg_replication_slots WHERE NOT temporary"))


def fail(operator: Any, context: Any) -> None:
    context["ti"].task = operator
    for callback in operator.on_failure_callback:
        callback(context)


def test_the_last_failure_of_any_step_releases_the_slot(
    postgres: PostgresServer, run: Storage, context: Any, tmp_path: Any
) -> None:
    assert kept(postgres) == 1
    fail(ExtractDeltaOperator(task_id="extract_delta", source_conn_id="shop", run_uri=run.uri), context)
    assert kept(postgres) == 0
    # Another task of the run may fail after it.
    recording: Any = {"plan": [], "options": OPTIONS, "target": tmp_path.as_uri()}
    fail(LockAndRecordOperator(task_id="lock_and_record", source_conn_id="shop", **recording), context)


def test_a_task_that_is_cleared_after_the_slot_was_released_says_so_before_spark_starts(
    postgres: PostgresServer, source: PostgresSource, run: Storage, context: Any, tmp_path: Any
) -> None:
    """Starting Spark takes long, and the error that came then told to leave the slots alone."""
    step = ExtractDeltaOperator(task_id="extract_delta", source_conn_id="shop", run_uri=run.uri)
    check_not_released(run, step.step)
    fail(step, context)
    with pytest.raises(LogGone, match=r"(?s)slot was released at .* clear the task `lock_and_record`"):
        step._execute(context)
    # It proves by the slot that the server is the one that the run began on.
    consolidating = ConsolidateOperator(task_id="consolidate", source_conn_id="shop", run_uri=run.uri)
    with pytest.raises(LogGone, match="slot was released"):
        consolidating._execute(context)
    begun_anew = begin_again(source, run, tmp_path)
    check_not_released(begun_anew, step.step)


def test_a_manifest_that_is_there_is_found_by_lock_and_record_too(
    postgres: PostgresServer, run: Storage, context: Any, tmp_path: Any
) -> None:
    recording: Any = {"plan": [], "options": OPTIONS, "target": tmp_path.as_uri()}
    fail(LockAndRecordOperator(task_id="lock_and_record", source_conn_id="shop", **recording), context)
    assert kept(postgres) == 0


def test_a_step_that_was_left_no_run_does_not_blame_the_code(
    postgres: PostgresServer, run: Storage, context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """lock_and_record was marked as successful before it ran, or Airflow's database was cleaned."""
    with DAG("d", schedule=None):
        group = SnapshotTaskGroup(source_conn_id="shop", tables=["public.*"], target="file:///lake")
    with caplog.at_level(logging.INFO):
        fail(group.consolidate, context)
    assert "Cannot tell which run this task belongs to" in caplog.text
    assert "attribute" not in caplog.text
    assert kept(postgres) == 1


def test_a_run_in_a_scratch_of_its_own_is_found_by_lock_and_record(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any
) -> None:
    target = f"{tmp_path.as_uri()}/lake"
    source.record_initial(source.preflight(["public.stock"]), LockPolicy(), run_id_of(context, target))
    assert kept(postgres) == 1
    recording: Any = {"plan": [], "options": OPTIONS, "target": target, "scratch": f"{tmp_path.as_uri()}/work"}
    fail(LockAndRecordOperator(task_id="lock_and_record", source_conn_id="shop", **recording), context)
    assert kept(postgres) == 0


def test_author_s_own_callbacks_stay(run: Storage) -> None:
    def tell(context: Any) -> None: ...

    with DAG("d", schedule=None, default_args={"on_failure_callback": tell}):
        group = SnapshotTaskGroup(source_conn_id="shop", tables=["public.*"], target="file:///lake")
    for task in (group.lock_and_record, group.snapshot, group.extract_delta, group.consolidate):
        first, second = task.on_failure_callback
        assert (first, second.__name__) == (tell, "release_of_task")
    assert list(group.preflight.on_failure_callback) == [tell]


def test_a_killed_step_releases_the_slot_and_one_that_timed_out_does_not(
    postgres: PostgresServer, source: PostgresSource, run: Storage, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = SnapshotOperator(task_id="snapshot", source_conn_id="shop", run_uri=run.uri)
    operator.on_kill()
    assert kept(postgres) == 1, "nothing had begun"
    operator.will_release(run, source.settings, context)
    # A killed task can no longer request a connection from Airflow.
    monkeypatch.delenv("AIRFLOW_CONN_SHOP")
    try:
        raise AirflowTaskTimeout
    except AirflowTaskTimeout:
        operator.on_kill()
    assert kept(postgres) == 1, "it may be tried again"
    operator.on_kill()
    assert kept(postgres) == 0


def test_a_killed_step_releases_the_slot_before_it_waits_for_spark(
    postgres: PostgresServer, source: PostgresSource, run: Storage, context: Any
) -> None:
    """Airflow kills the task if it takes more than a few seconds to end."""
    seen: list[tuple[str, bool, int]] = []

    class Ending(ClientLauncher):
        def cancel(self, job: Job, *, wait_seconds: float = 0.0) -> None:
            seen.append((job.id, wait_seconds > 0, kept(postgres)))

    operator = SnapshotOperator(task_id="snapshot", source_conn_id="shop", run_uri=run.uri)
    operator.will_release(run, source.settings, context)
    operator._job = Ending("spark", {}, {}, None), Job("7", "token")
    operator.on_kill()
    assert seen == [("7", False, 1), ("7", True, 0)]


@pytest.mark.parametrize(
    ("state", "left"),
    [
        # Cleared while it ran; taken for dead, and tried again; Airflow's server was not reached for too long.
        ("restarting", 1),
        ("up_for_retry", 1),
        ("queued", 1),
        ("running", 1),
        (None, 1),
        (OSError("no answer"), 1),
        # Marked by a person; the run took too long; it was deleted.
        ("failed", 0),
        ("skipped", 0),
        ("success", 0),
        ({}, 0),
    ],
)
def test_a_task_that_is_killed_and_tried_again_keeps_its_slot(
    postgres: PostgresServer,
    source: PostgresSource,
    run: Storage,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    state: Any,
    left: int,
) -> None:
    def answer(**asked: Any) -> Any:
        assert asked == {"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"]}
        if isinstance(state, Exception):
            raise state
        return state if isinstance(state, dict) else {"r": {"t": state}}

    # As below a supervisor of Airflow's.
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", object(), raising=False)
    context["ti"].get_task_states = answer
    operator = SnapshotOperator(task_id="t", source_conn_id="shop", run_uri=run.uri)
    operator.will_release(run, source.settings, context)
    operator.on_kill()
    assert kept(postgres) == left
    # The task's process may count the task as failed: it cannot know what Airflow does next.
    fail(operator, context)
    assert kept(postgres) == left


@pytest.mark.usefixtures("in_dag_processor")
def test_a_failed_dag_run_releases_the_slot_of_a_task_that_could_not_do_so_itself(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any
) -> None:
    def tell(context: Any) -> None: ...

    # As in a DAG with a form: the process that runs the failure callback has not rendered any template.
    with DAG("d", schedule=None, on_failure_callback=tell, params={"lake": tmp_path.as_uri(), "shop": "shop"}) as dag:
        group = SnapshotTaskGroup(
            source_conn_id="{{ params.shop }}", tables=["public.*"], target="{{ params.lake }}", prefix_group_id=True
        )
    first, second = dag.on_failure_callback
    assert first is tell
    assert dag.has_on_failure_callback
    last = {**context, "params": dag.params.dump(), "dag": dag}
    run_id = run_id_for(context["dag_run"], group.lock_and_record.task_id, tmp_path.as_uri())
    second(last)  # nothing was recorded yet
    begin_run(source, run_id, tmp_path)
    assert kept(postgres) == 1
    second(last)
    assert kept(postgres) == 0


@pytest.mark.usefixtures("in_dag_processor")
def test_a_failed_dag_run_releases_the_slots_of_all_groups_of_a_mapped_one(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CRM", os.environ["AIRFLOW_CONN_SHOP"])
    with DAG("d", schedule=None) as dag:
        group = SnapshotTaskGroup.partial(tables=["public.*"], target=f"{tmp_path.as_uri()}/{{source}}").expand(
            source_conn_id=["shop", "crm", "gone"]
        )

    def states(**asked: Any) -> Any:
        assert asked == {"dag_id": "d", "task_ids": ["lock_and_record"], "run_ids": ["r"]}
        return {"r": {f"lock_and_record_{index}": "success" for index in range(3)}}

    context["ti"].get_task_states = states
    (release,) = dag.on_failure_callback
    for index, conn_id in enumerate(["shop", "crm"]):
        lake = tmp_path / conn_id
        begin_run(source, run_id_for(context["dag_run"], group.lock_and_record.task_id, lake.as_uri(), index), lake)
    assert kept(postgres) == 2
    release({**context, "dag": dag})
    assert kept(postgres) == 0


@pytest.mark.usefixtures("in_dag_processor")
def test_a_run_whose_manifest_was_never_written_leaves_nothing(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any
) -> None:
    """The task was killed right after the server had created the slot."""
    with DAG("d", schedule=None) as dag:
        group = SnapshotTaskGroup(source_conn_id="shop", tables=["public.*"], target=tmp_path.as_uri())
    (release,) = dag.on_failure_callback
    run_id = run_id_for(context["dag_run"], group.lock_and_record.task_id, tmp_path.as_uri())
    source.record_initial(source.preflight(["public.stock"]), LockPolicy(), run_id)
    assert kept(postgres) == 1
    release(context)
    assert kept(postgres) == 0
    assert postgres.query("SELECT 1 FROM pg_publication", database=source.settings.database) == []


def test_what_the_callbacks_of_a_dag_ask_for_its_processor_can_answer() -> None:
    """Airflow's DAG processor takes some questions to which it cannot read the answers."""
    answers = {kind.__name__ for kind in get_args(get_args(processor.ToDagProcessor)[0])}
    questions = {kind.__name__ for kind in get_args(get_args(processor.ToManager)[0])}
    assert {"TaskStatesResult", "ConnectionResult"} <= answers
    assert {"GetTaskStates", "GetConnection"} <= questions


def test_a_dag_that_is_tested_has_only_the_callbacks_that_its_author_gave_it() -> None:
    with DAG("d", schedule=None) as dag:
        SnapshotTaskGroup(source_conn_id="shop", tables=["public.*"], target="file:///lake")
    assert not dag.has_on_failure_callback
    assert not dag.has_on_success_callback


@pytest.mark.usefixtures("in_dag_processor")
def test_a_dag_run_that_succeeds_though_its_tasks_were_only_marked_releases_the_slot(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any
) -> None:
    def tell(context: Any) -> None: ...

    with DAG("d", schedule=None, on_success_callback=tell) as dag:
        group = SnapshotTaskGroup(source_conn_id="shop", tables=["public.*"], target=tmp_path.as_uri())
    first, second = dag.on_success_callback
    assert first is tell
    assert dag.has_on_success_callback
    begin_run(source, run_id_for(context["dag_run"], group.lock_and_record.task_id, tmp_path.as_uri()), tmp_path)
    assert kept(postgres) == 1
    second(context)
    assert kept(postgres) == 0


@pytest.mark.usefixtures("in_dag_processor")
@pytest.mark.parametrize(("reached", "left"), [("record", 1), ("commit", 1), ("ended", 0), ("", 0)])
def test_a_slot_that_is_to_be_kept_stays_when_the_dag_run_fails_after_it_was_decided_what_is_published(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any, reached: str, left: int
) -> None:
    with DAG("d", schedule=None) as dag:
        group = SnapshotTaskGroup(
            source_conn_id="shop", tables=["public.*"], target=tmp_path.as_uri(), read=Read(keep_slot=True)
        )
    (release,) = dag.on_failure_callback
    run_id = run_id_for(context["dag_run"], group.lock_and_record.task_id, tmp_path.as_uri())
    run = begin_run(source, run_id, tmp_path, keep_slot=True)
    begun = Run.load(run)
    if reached == "record":
        publish(begun)
    elif reached == "commit":
        commit(begun)
    elif reached == "ended":
        begun.end("stopped by ann")
    release(context)
    assert kept(postgres) == left
    source.discard(begun.manifest.identity)


def test_a_source_that_cannot_be_reached_does_not_hide_why_the_task_failed(
    run: Storage, context: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = {"conn_type": "cdc_postgres", "host": "127.0.0.1", "port": 1, "login": "x", "schema": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(gone))
    with caplog.at_level(logging.WARNING):
        fail(SnapshotOperator(task_id="snapshot", source_conn_id="shop", run_uri=run.uri), context)
    assert "Could not drop the replication slot" in caplog.text


def recording(source: PostgresSource, target: Any) -> LockAndRecordOperator:
    plan = encode(source.preflight(["public.stock"]))
    return LockAndRecordOperator(
        task_id="lock_and_record", source_conn_id="shop", target=target.as_uri(), plan=plan, options=OPTIONS
    )


@pytest.mark.parametrize(("module", "name"), [(waits, "wait_until_visible"), (Run, "create")])
def test_of_two_tries_one_slot_is_left_and_both_tell_its_position(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any, module: Any, name: str
) -> None:
    """The quicker one's position counts; what the slower one makes is dropped, even while it still needs it."""
    first, second = recording(source, tmp_path), recording(source, tmp_path)
    told: list[dict[str, Any]] = []
    proceed = getattr(module, name)

    def be_overtaken(*arguments: Any, **options: Any) -> Any:
        patch.undo()
        assert kept(postgres) == 1
        told.append(second.execute(context))
        return proceed(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, be_overtaken)
        told.append(first.execute(context))
    assert told[0] == told[1]
    manifest = Run.load(Storage(told[0]["run_uri"])).manifest
    assert postgres.query("SELECT slot_name FROM pg_replication_slots WHERE NOT temporary") == [
        (manifest.identity.slot,)
    ]
    source.check_identity(manifest.identity, manifest.initial)
    source.release(manifest.run_id)


def test_a_kill_while_the_position_is_recorded_leaves_no_slot(
    postgres: PostgresServer, source: PostgresSource, context: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = recording(source, tmp_path)
    operator.on_kill()
    # Airflow calls it from a signal handler, which interrupts the task at any point.
    settle = "airflow_provider_cdc.sources.postgres.slots.waits.wait_until_visible"
    seen: list[int] = []

    def be_killed(*arguments: Any) -> None:
        seen.append(kept(postgres))
        operator.on_kill()

    monkeypatch.setattr(settle, be_killed)
    with pytest.raises(AirflowException, match="killed"):
        operator.execute(context)
    assert seen == [1]
    assert kept(postgres) == 0
    assert not Run.exists(Storage(tmp_path.as_uri()).folder("_runs", run_id_of(context, tmp_path.as_uri())))
