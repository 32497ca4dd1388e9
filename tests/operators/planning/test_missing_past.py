"""A nightly run whose past position is missing copies the present and logs this; a requested position is rejected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc import Allow
from airflow_provider_cdc.core.options.run import BEGIN_ANEW, FeedOptions, StepOptions
from airflow_provider_cdc.core.positions.as_of import INTERVAL_END
from airflow_provider_cdc.core.run.manifest import FeedGap, MissedPast, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.operators.arguments.options import Given
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.planning.missing_past import record_or_miss
from airflow_provider_cdc.operators.planning.plan_text import log_feed_gaps
from airflow_provider_cdc.operators.preflight import PreflightOperator
from harness.postgres_server import PostgresServer

STANDING = "missing_past"


@pytest.fixture
def database_with_slot(postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    postgres.query(
        "CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL", database=database
    )
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_postgres", **fields}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    yield database
    for (slot,) in postgres.query("SELECT slot_name FROM pg_replication_slots WHERE NOT temporary"):
        postgres.query("SELECT pg_drop_replication_slot(%s)", (slot,))


def context_of(dag: DAG, night: datetime, run_type: str) -> Any:
    instance = SimpleNamespace(xcom_push=lambda **_: None, task_id="lock_and_record", map_index=-1, try_number=1)
    instance.dag_id, instance.run_id = "d", f"{run_type}__{night.isoformat()}"
    dag_run = SimpleNamespace(conf={}, run_type=run_type, run_after=night, dag_id="d", run_id=instance.run_id)
    return {"dag": dag, "dag_run": dag_run, "params": {}, "data_interval_end": night, "ti": instance}


def preflight(target: Path, night: datetime, run_type: str = "scheduled", **given: Any) -> tuple[dict[str, Any], Any]:
    """What preflight of the run at the end of an interval leaves for later tasks."""
    arguments = {
        "tables": ["public.stock"],
        "as_of": INTERVAL_END,
        "standing_slot": STANDING,
        "refresh": "auto",
        **given,
    }
    with DAG("d", schedule=None) as dag:
        values = {"source_conn_id": "shop", "target": target.as_uri(), "spark_conn_id": "spark", **arguments}
        task = PreflightOperator.of_options(Given(values, Allow(), {}), "preflight")
    context = context_of(dag, night, run_type)
    task.render_template_fields(context)
    return task.execute(context), context


def record(target: Path, found: dict[str, Any], context: Any) -> Run:
    """The run that lock_and_record begins with what preflight left."""
    handed_on = {
        name: found[name] for name in ("plan", "options", "skipped", "missed_past", "may_miss_past", "request")
    }
    recording = LockAndRecordOperator(
        task_id="lock_and_record", source_conn_id="shop", target=target.as_uri(), **handed_on
    )
    return Run.load(Storage(recording.execute(context)["run_uri"]))


@pytest.mark.slow
def test_a_night_without_a_past_copies_the_present_and_says_so(
    postgres: PostgresServer, database_with_slot: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = datetime.now(UTC) - timedelta(hours=1)
    written = first.isoformat()
    refused: list[dict[str, Any]] = [
        {"missing_past": "fail"},
        {"run_type": "backfill"},
        {"as_of": written},
        {"as_of": INTERVAL_END.partition("{#")[0]},
    ]
    for given in refused:
        with pytest.raises(AirflowFailException, match=r"covers the table only since|lies before the standing slot"):
            preflight(tmp_path, first, **given)
    found, context = preflight(tmp_path, first)
    assert found["options"]["as_of"] == ""
    assert found["missed_past"]["as_of"] == written
    assert "standing slot" in found["missed_past"]["why"]
    assert "AS_OF IS NOT MET" in capfd.readouterr().out

    run = record(tmp_path, found, context)
    assert (run.manifest.options.as_of, run.manifest.missed_as_of) == ("", written)

    postgres.query("INSERT INTO stock VALUES (1)", database=database_with_slot)
    second = datetime.now(UTC)
    found, _ = preflight(tmp_path, second)
    assert (found["options"]["as_of"], found["missed_past"]) == (second.isoformat(), {})

    postgres.query("ALTER TABLE stock ADD n int", database=database_with_slot)
    found, _ = preflight(tmp_path, second)
    assert found["missed_past"]["as_of"] == second.isoformat()
    assert "altered" in found["missed_past"]["why"]


def test_what_is_wrong_with_the_present_is_told_of_a_night_without_a_past(
    postgres: PostgresServer, database_with_slot: str, tmp_path: Path
) -> None:
    """The missing past is no reason to fail, and would hide what is."""
    with pytest.raises(AirflowFailException, match="parameter changes") as refusal:
        preflight(tmp_path, datetime.now(UTC) - timedelta(hours=1), changes=True, refresh="full")
    assert "past" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("ALTER TABLE stock ADD n int", "altered"),
        ("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", "does not exist yet"),
    ],
)
def test_a_past_that_goes_missing_after_preflight_is_missed_as_before_it(
    postgres: PostgresServer, database_with_slot: str, tmp_path: Path, what: str, why: str
) -> None:
    preflight(tmp_path, datetime.now(UTC) - timedelta(hours=1))
    night = datetime.now(UTC)
    postgres.query("INSERT INTO stock VALUES (1)", database=database_with_slot)
    found, context = preflight(tmp_path, night)
    written, _ = preflight(tmp_path, night, as_of=night.isoformat())
    assert (found["may_miss_past"], written["may_miss_past"]) == (True, False)
    postgres.query(what, database=database_with_slot)
    run = record(tmp_path, found, context)
    assert (run.manifest.options.as_of, run.manifest.missed_as_of) == ("", night.isoformat())
    assert run.manifest.missed_past is not None
    assert why in run.manifest.missed_past.why
    # The next night has a past, and a cleared task goes on with the run.
    assert record(tmp_path, found, context).digest == run.digest
    found, _ = preflight(tmp_path, datetime.now(UTC))
    assert found["missed_past"] == {}
    # The run before created another standing slot.
    later = {**context, "dag_run": SimpleNamespace(**{**vars(context["dag_run"]), "run_id": "scheduled__later"})}
    with pytest.raises(AirflowFailException, match=f"{why}|lies before the standing slot"):
        record(tmp_path, written, later)


def test_a_feed_may_begin_anew_where_a_past_goes_missing() -> None:
    """The table was altered after preflight, so its copy cannot be rolled forward to the present either."""
    where, why = "shop.orders", "it was altered"
    plans = [TablePlan(TableName.parse(name), "watermark", "", base="b", base_position="p") for name in (where, "s.t")]

    def record(now: Sequence[TablePlan], options: StepOptions, missed: MissedPast | None) -> Any:
        if missed is None or now == plans:
            raise PreflightError([Problem(where, why, "", where)])
        return now

    given = StepOptions(as_of="2026-01-01T00:00:00Z", refresh="auto", changes=True)
    with pytest.raises(PreflightError, match=why):
        record_or_miss(cast(Any, None), plans, given, record)
    anew = replace(given, feeds=FeedOptions(BEGIN_ANEW))
    found: Any = record_or_miss(cast(Any, None), plans, anew, record)
    assert [(plan.base, plan.feed_gap) for plan in found] == [("", FeedGap("b", "p", why)), ("b", None)]
    assert "its changes begin anew" in found[0].reason
    said: list[str] = []
    log_feed_gaps(SimpleNamespace(warning=lambda text, *values: said.append(text % values)), found)
    assert said == [f"{where}: the feed ended at p (run b), and begins anew at the position of this run: {why}"]


@pytest.mark.slow
def test_skip_leaves_out_tables_that_never_have_a_past_and_no_others(
    postgres: PostgresServer, database_with_slot: str, tmp_path: Path
) -> None:
    """A table that was altered has one again in the next night; until then its copy is better than none."""
    whole = "REPLICA IDENTITY FULL"
    postgres.query(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE days (id int PRIMARY KEY) PARTITION BY RANGE (id); "
        f"CREATE TABLE day PARTITION OF days FOR VALUES FROM (0) TO (9); ALTER TABLE items {whole}; "
        f"ALTER TABLE days {whole}; ALTER TABLE day {whole}",
        database=database_with_slot,
    )
    given: dict[str, Any] = {
        "tables": ["public.stock", "public.items", "public.days"],
        "on_table_error": "skip",
        "refresh": "full",
    }
    night = datetime.now(UTC)
    found, _ = preflight(tmp_path, night, **given)
    assert found["missed_past"]["as_of"] == night.isoformat()
    assert found["skipped"] == {}

    night = datetime.now(UTC)
    found, _ = preflight(tmp_path, night, **given)
    assert found["missed_past"] == {}
    assert [*found["skipped"]] == ["public.days"]

    postgres.query("ALTER TABLE items ADD n int", database=database_with_slot)
    found, _ = preflight(tmp_path, night, **given)
    assert "public.items: the standing slot covers the table only since" in found["missed_past"]["why"]
    assert found["skipped"] == {}
    assert len(found["plan"]) == 3
    # With an explicit `as_of`, the run does not fall back to the present: only these tables are left out.
    found, _ = preflight(tmp_path, night, as_of=night.isoformat(), **given)
    assert {*found["skipped"]} == {"public.items", "public.days"}
