"""The clean-up as a task and as a command: what a PostgreSQL server keeps, and what Airflow says of DAG runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc import clean
from airflow_provider_cdc.cleaning import cleaner
from airflow_provider_cdc.core.liveness import DagRunNames, note_dag_run
from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage, clock_of
from airflow_provider_cdc.jobs.verify.request import FOLDER, REQUEST, CopyAsked, VerifyRequest
from airflow_provider_cdc.operators.base import run_id_for
from airflow_provider_cdc.operators.clean import CleanOperator
from airflow_provider_cdc.sources.postgres import PostgresSource
from harness.postgres_server import PostgresServer
from tests.runs import manifest_of, publish
from tests.sources.postgres.log.reading import settings as settings_of

Begin = Callable[..., str]
Clean = Callable[..., dict[str, Any]]


@pytest.fixture
def source(postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch) -> PostgresSource:
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_postgres", **fields}))
    postgres.query(
        "CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL", database=database
    )
    return PostgresSource(settings_of(postgres, database))


@pytest.fixture
def begin(source: PostgresSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Creates the slot of a run of a DAG run, and the run's manifest, and returns the id of the run."""
    begun = []

    def begin(
        dag_run_id: str,
        *,
        manifest: bool = True,
        lake: str = "lake",
        published: bool = False,
        run_id: str = "",
        **options: Any,
    ) -> str:
        names = {"DAG_ID": "d", "DAG_RUN_ID": dag_run_id, "TASK_ID": "shop.lock_and_record"}
        for name, value in names.items():
            monkeypatch.setenv(f"AIRFLOW_CTX_{name}", value)
        place = Storage((tmp_path / lake).as_uri())
        dag_run = SimpleNamespace(dag_id="d", run_id=dag_run_id, run_after=datetime(2026, 1, 1, tzinfo=UTC))
        run_id = run_id or run_id_for(dag_run, "shop.lock_and_record", place.uri, 3)
        initial = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), run_id)
        begun.append(initial.identity)
        if manifest:
            run = Run.create(
                manifest_of(
                    place,
                    run_id,
                    kind="postgres",
                    position_key="initial_lsn",
                    initial_position=str(initial.position),
                    identity=initial.identity,
                    tables=tuple(RunTable(table, "watermark", "") for table in initial.tables),
                    options=StepOptions(**options),
                    source_conn_id="shop",
                )
            )
            note_dag_run(run.folder, DagRunNames("d", dag_run_id, "shop.lock_and_record", 3))
            if published:
                publish(run)
                run.record_announced()
        return run_id

    yield begin
    for identity in begun:
        source.discard(identity)


@pytest.fixture
def cleaning(tmp_path: Path) -> Clean:
    """Runs the task. ``states`` has Airflow's states by DAG run; DAG runs that are not in it were deleted."""

    def cleaning(states: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        given = {"source_conn_id": "shop", "target": (tmp_path / "lake").as_uri(), "days": 0, **arguments}
        task = CleanOperator(task_id="clean", **given)

        def state_of(dag_id: str, run_id: str) -> str:
            if isinstance(states[run_id], Exception):
                raise states[run_id]
            return str(states[run_id])

        pushed: dict[str, Any] = {}
        instance = SimpleNamespace(
            get_dr_count=lambda dag_id, run_ids: sum(one in states for one in run_ids),
            get_dagrun_state=state_of,
            get_task_states=lambda dag_id, task_ids, run_ids: {run_ids[0]: dict.fromkeys(task_ids, "success")},
            xcom_push=lambda key, value: pushed.update({key: value}),
        )
        found = task.execute({"ti": instance})
        assert pushed == {name: found[name] for name in ("removed", "kept", "bytes")}
        return found

    return cleaning


def kept(server: PostgresServer, source: PostgresSource) -> list[str]:
    """The runs with a slot, and the runs with a publication."""
    rows = server.query(
        "SELECT slot_name FROM pg_replication_slots UNION ALL SELECT pubname FROM pg_publication",
        database=source.settings.database,
    )
    return sorted(name for (name,) in rows)


def told(found: dict[str, Any], run_id: str) -> set[str]:
    return {one["why"] for one in found["kept"] if one["run_id"] == run_id}


def test_the_slot_of_a_failed_run_goes_with_its_folder(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, cleaning: Clean, tmp_path: Path
) -> None:
    failed, running = begin("failed-one"), begin("running-one")
    states = {"failed-one": "failed", "running-one": "running"}
    planned = cleaning(states, dry_run=True)
    assert len(kept(postgres, source)) == 4
    found = cleaning(states)
    assert [one["run_id"] for one in found["removed"]] == [failed]
    assert (found["removed"], found["kept"]) == (planned["removed"], planned["kept"])
    assert told(found, running) == {"DAG run running-one of the DAG d is running"}
    assert len(kept(postgres, source)) == 2
    assert [path.name for path in (tmp_path / "lake/_runs").iterdir()] == [running]
    manifest = Run.load(Storage((tmp_path / "lake/_runs" / running).as_uri())).manifest
    source.check_identity(manifest.identity, manifest.initial)


def test_the_slot_of_a_killed_verification_goes_with_its_folder(
    postgres: PostgresServer,
    source: PostgresSource,
    begin: Begin,
    cleaning: Clean,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin("base-one", published=True)
    killed = begin("unknown", manifest=False, run_id="20260105T000000Z-0a0a0a0a")
    folder = Storage((tmp_path / "lake").as_uri()).folder(FOLDER, killed)
    records.write(folder, REQUEST, VerifyRequest("source", killed, (CopyAsked("public.stock"),), source_conn_id="shop"))
    folder.write_text(f"{killed}/chunks/part-0.parquet", "rows")
    states = {"base-one": "success"}
    assert any("may still work" in why for why in told(cleaning(states), killed))
    assert len(kept(postgres, source)) == 2, "the slot and the publication of the verification"
    monkeypatch.setattr(cleaner, "clock_of", lambda store: clock_of(store) + timedelta(days=8))
    found = cleaning(states)
    assert ("verification", killed) in {(one["kind"], one["run_id"]) for one in found["removed"]}
    assert kept(postgres, source) == []
    assert not (tmp_path / "lake" / FOLDER / killed).exists()


def test_a_slot_in_use_keeps_its_run(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, cleaning: Clean
) -> None:
    failed = begin("failed-one")
    (slot,) = {*kept(postgres, source)}
    dsn = f"host={postgres.host} port={postgres.port} user=postgres dbname={source.settings.database}"
    with closing(psycopg.connect(f"{dsn} replication=database", autocommit=True)) as stream:
        stream.pgconn.send_query(
            f"START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 (proto_version '1', publication_names '{slot}')".encode()
        )
        stream.pgconn.get_result()
        found = cleaning({"failed-one": "failed"})
        assert found["removed"] == []
        assert any("reads from the slot" in why for why in told(found, failed))
    assert len(kept(postgres, source)) == 2


@pytest.mark.slow
def test_orphans_on_the_server_go_only_with_a_proof(
    postgres: PostgresServer, source: PostgresSource, begin: Begin, cleaning: Clean
) -> None:
    published = begin("base-one", published=True)
    streamed = begin("streamed-one", published=True, keep_slot=True)
    # The tasks of these died before they wrote a manifest.
    orphan = begin("orphan-one", manifest=False)
    deleted = begin("deleted-one", manifest=False)
    silent = begin("silent-one", manifest=False)
    elsewhere = begin("elsewhere-one", manifest=False, lake="other")
    theirs = "cdc_20260101t000000z_00000000_aabbccdd"
    database = source.settings.database
    postgres.query(f"CREATE PUBLICATION {theirs}", database=database)
    postgres.query(f"SELECT pg_create_logical_replication_slot('{theirs}', 'pgoutput')", database=database)
    postgres.query("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')", database=database)
    states = {
        **dict.fromkeys(("base-one", "streamed-one", "orphan-one", "elsewhere-one"), "failed"),
        "silent-one": RuntimeError("Airflow does not answer"),
    }
    try:
        before = kept(postgres, source)
        found = cleaning(states)
        gone = {one["what"] for one in found["removed"]}
        assert {*before} - {*kept(postgres, source)} == gone
        assert len(gone) == 2
        assert {one["run_id"] for one in found["removed"]} == {orphan, published}
        assert told(found, streamed) == {"`Read.keep_slot` of its run keeps it"}
        assert told(found, deleted) == {"Airflow does not know the DAG run deleted-one of the DAG d"}
        assert any("does not answer" in why for why in told(found, silent))
        assert any("not proven" in why for why in told(found, elsewhere))
        assert {"the run that created it is unknown"} == told(found, "")
    finally:
        for name in (theirs, "mine"):
            postgres.query(f"SELECT pg_drop_replication_slot('{name}')", database=database)


def test_a_run_stays_while_its_server_cannot_be_asked(
    begin: Begin, cleaning: Clean, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = begin("failed-one")
    connection = {"conn_type": "cdc_postgres", "host": "127.0.0.1", "port": 1, "login": "postgres", "schema": "d"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    found = cleaning({"failed-one": "failed"})
    assert found["removed"] == []
    assert any("could not be listed" in why for why in told(found, failed))


def test_wrong_arguments_are_told(cleaning: Clean) -> None:
    with pytest.raises(AirflowFailException, match="parameter days"):
        cleaning({}, days=-1)
    with pytest.raises(AirflowFailException, match="does not allow"):
        cleaning({}, targets=["/elsewhere"])


def test_the_command_says_what_the_task_says_but_does_not_ask_airflow(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = begin("failed-one")
    arguments = ["--source-conn-id", "shop", "--target", (tmp_path / "lake").as_uri(), "--days", "0"]
    assert clean.main([*arguments, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["removed"], found["dry_run"]) == ([], True)
    assert "less than 7 days ago" in told(found, failed).pop()
    assert clean.main(arguments) == 0
    assert "0 leftovers removed, 0 bytes in the lake" in capsys.readouterr().out
    assert clean.main([*arguments[:3], str(tmp_path / "nowhere")]) == 1
    assert "there are no folders of runs here" in capsys.readouterr().err
