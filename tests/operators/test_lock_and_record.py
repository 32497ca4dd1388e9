"""The initial position of a run is fixed once, whatever is cleared and however many tries run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, LockNotGranted, LogGone
from airflow_provider_cdc.operators import lock_and_record
from airflow_provider_cdc.operators.base import run_id_of, scratch_for
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from tests.jobs.history_source import History, HistorySource
from tests.runs import commit, manifest_of, publish

ORDERS, CLICKS = TableName("shop", "orders"), TableName("shop", "clicks")
PLAN = encode([TablePlan(ORDERS, "watermark", "it has a key"), TablePlan(CLICKS, "lock", "it has none")])
OPTIONS = {"chunk_rows": 7, "chunk_pause": 0.5, "lock": asdict(LockPolicy(wait_seconds=1))}


def position(number: int) -> GtidSet:
    return GtidSet.parse(f"00000000-0000-0000-0000-000000000001:1-{number}")


class FakeSource(HistorySource):
    """Its position grows with every call."""

    kind = "mysql"
    position_key = "initial_gtid_set"

    def __init__(self) -> None:
        super().__init__(History(), 0)
        self.calls: list[LockPolicy] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.gone = False
        self.keeps = False
        self.released: list[str] = []

    def discard(self, identity: Facts) -> None:
        self.released.extend([identity.slot] if self.keeps else [])

    def check_identity(self, identity: Facts, position: Position) -> None:
        if self.gone:
            raise LogGone("the slot is gone", where="slot", hint="begin anew")

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        self.calls.append(lock)
        number = len(self.calls)
        self.meanwhile()
        tables = tuple(Table(plan.table, (Column("id", "int", False),)) for plan in plans)
        identity = {"uuid": "server"}
        if self.keeps:
            identity["slot"] = f"cdc_{number}"
        return InitialPoint(position(number), Facts(identity), tables[::-1], 0.002)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    fake = FakeSource()
    monkeypatch.setattr(lock_and_record, "open_source_with_replicas", lambda *connections: fake)
    return fake


def context(**changes: Any) -> Any:
    names: dict[str, Any] = {"dag_id": "d", "run_id": "manual__2026-01-01T00:00:00+00:00", "task_id": "lock_and_record"}
    names |= {"map_index": -1, "try_number": 1, "run_after": datetime(2026, 1, 1, 12, 30, tzinfo=UTC), **changes}
    everything = SimpleNamespace(xcom_push=lambda **_: None, **names)
    return {"dag_run": everything, "ti": everything}


def operator(target: Path, plan: Sequence[Mapping[str, Any]] = tuple(PLAN)) -> LockAndRecordOperator:
    return LockAndRecordOperator(
        task_id="lock_and_record", source_conn_id="shop", target=target.as_uri(), plan=list(plan), options=OPTIONS
    )


def test_a_published_run_whose_records_are_gone_is_not_begun_again(source: FakeSource, tmp_path: Path) -> None:
    """Its copies are there: all would be read for others of the same name."""
    run_id = run_id_of(context(), tmp_path.as_uri())
    copy = tmp_path / "shop.clicks" / f"snapshot={run_id}"
    copy.mkdir(parents=True)
    (copy / "part-0.parquet").write_bytes(b"rows")
    with pytest.raises(AirflowFailException, match=r"has published copies, such as .*shop\.clicks/snapshot="):
        operator(tmp_path).execute(context())
    assert not source.calls, "nothing was locked or made on the server"
    (copy / "part-0.parquet").unlink()
    operator(tmp_path).execute(context())
    # With its manifest, the run goes on.
    (copy / "part-0.parquet").write_bytes(b"rows")
    operator(tmp_path).execute(context())


def test_manifest_holds_what_later_steps_need(source: FakeSource, tmp_path: Path) -> None:
    pushed = operator(tmp_path).execute(context())
    run = Storage(pushed["run_uri"])
    manifest = Run.load(run).manifest
    assert pushed == {"run_uri": run.uri, "initial_gtid_set": str(position(1))}
    assert run.uri == f"{tmp_path.as_uri()}/_runs/{manifest.run_id}"
    assert manifest.initial_position == str(position(1))
    assert asdict(manifest.options) == {**asdict(StepOptions()), **OPTIONS}
    assert source.calls == [LockPolicy(wait_seconds=1)]
    # The source may return tables in another order.
    assert {table.table.name: (table.consistency, table.reason) for table in manifest.tables} == {
        ORDERS: ("watermark", "it has a key"),
        CLICKS: ("lock", "it has none"),
    }


def test_the_work_of_a_run_lies_in_the_scratch_that_is_named(source: FakeSource, tmp_path: Path) -> None:
    task = operator(tmp_path / "lake")
    task.scratch = f"{tmp_path.as_uri()}/{{source}}/jobs"
    pushed = task.execute(context())
    assert pushed["run_uri"].startswith(f"{tmp_path.as_uri()}/shop/jobs/20260101T")
    assert Run.load(Storage(pushed["run_uri"])).manifest.lake == f"{tmp_path.as_uri()}/lake"
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("scratch", ["s3://lake/raw", "s3://lake/raw/", "s3://lake/raw/jobs/x", "s3://lake/{table}"])
def test_a_scratch_that_readers_would_take_for_tables_is_refused(scratch: str) -> None:
    with pytest.raises(ConfigurationError):
        scratch_for(scratch, "shop", "s3://lake/raw")
    for fine in ("s3://lake/raw/_jobs", "s3://lake/raw2", "s3://lake", "file:///jobs"):
        assert scratch_for(fine, "shop", "s3://lake/raw") == fine
    assert scratch_for("", "shop", "s3://lake/raw") == "s3://lake/raw/_runs"


def test_cleared_task_keeps_the_position_that_chunks_were_read_after(source: FakeSource, tmp_path: Path) -> None:
    first = operator(tmp_path).execute(context())
    again = operator(tmp_path, PLAN[:1]).execute(context())
    assert again == first
    assert len(source.calls) == 1


def test_cleared_task_tells_which_options_the_run_keeps_although_others_are_given(
    source: FakeSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, a user who cleared the tasks because of an error's hint would get the same error again."""
    first = operator(tmp_path).execute(context())
    assert operator(tmp_path).execute(context()) == first
    task = operator(tmp_path, [{**plan, "unrepresentable": "null"} for plan in PLAN])
    task.options = {**OPTIONS, "as_of": "2026-01-01T00:00:00Z", "lock": asdict(LockPolicy(wait_seconds=2))}
    assert task.execute(context()) == first
    (told,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "as_of: '', now '2026-01-01T00:00:00Z'; lock_wait_seconds: 1, now 2; unrepresentable: 'error', now" in told


def test_cleared_task_begins_anew_when_the_source_no_longer_reaches_back(source: FakeSource, tmp_path: Path) -> None:
    operator(tmp_path).execute(context())
    source.gone = True
    pushed = operator(tmp_path).execute(context())
    assert pushed["initial_gtid_set"] == str(position(2))
    assert Run.load(Storage(pushed["run_uri"])).manifest.initial_position == str(position(2))


def test_published_run_is_kept_whatever_became_of_its_source(source: FakeSource, tmp_path: Path) -> None:
    first = operator(tmp_path).execute(context())
    run = Storage(first["run_uri"])
    begun = Run.load(run)
    commit(begun)
    source.gone = True
    assert operator(tmp_path).execute(context(try_number=2)) == first
    assert len(source.calls) == 1


def test_a_dag_run_that_is_deleted_and_made_again_does_not_end_well_with_the_copies_of_the_first(
    source: FakeSource, tmp_path: Path
) -> None:
    def task(as_of: str) -> LockAndRecordOperator:
        task = operator(tmp_path)
        task.options = {**OPTIONS, "as_of": as_of}
        return task

    midnight, noon = "2026-01-01T00:00:00Z", "2026-01-01T12:00:00Z"
    lake, options = Storage(tmp_path.as_uri()), StepOptions(as_of=midnight)
    begun = Run.create(
        manifest_of(lake, run_id_of(context(), lake.uri), initial_position=str(position(9)), options=options)
    )
    # The run is not published yet, so no reader has its copy.
    first = task("").execute(context())
    assert first["initial_gtid_set"] == str(position(9))
    # What is decided is still to be put in place.
    commit(begun)
    assert task("").execute(context()) == first
    publish(begun)
    for as_of in ("", noon):
        with pytest.raises(
            AirflowFailException, match=r"(?s)an earlier DAG run .* has already published its copies.*another run id"
        ):
            task(as_of).execute(context())
    assert task(midnight).execute(context()) == first


def test_slow_try_gives_way_to_the_one_that_was_quicker(source: FakeSource, tmp_path: Path) -> None:
    def another_try() -> None:
        source.meanwhile = lambda: None
        operator(tmp_path).execute(context())

    source.meanwhile = another_try
    pushed = operator(tmp_path).execute(context())
    assert len(source.calls) == 2
    assert (
        Run.load(Storage(pushed["run_uri"])).manifest.initial_position == pushed["initial_gtid_set"] == str(position(2))
    )


def test_run_never_continues_on_another_kind_of_source(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator(tmp_path).execute(context())
    monkeypatch.setattr(FakeSource, "kind", "postgres")
    with pytest.raises(AirflowFailException, match="began on a mysql source"):
        operator(tmp_path).execute(context())


def test_lock_that_is_not_granted_is_worth_another_try(source: FakeSource, tmp_path: Path) -> None:
    def refuse() -> None:
        raise LockNotGranted("not granted", where="shop.clicks", hint="later")

    source.meanwhile = refuse
    with pytest.raises(AirflowException, match="not granted") as failed:
        operator(tmp_path).execute(context())
    assert not isinstance(failed.value, AirflowFailException)
    assert not Run.exists(Storage(tmp_path.as_uri()).folder("_runs", run_id_of(context(), tmp_path.as_uri())))


LAKE = "s3://lake/raw"


def test_run_id_is_the_same_for_every_try_and_safe_in_every_path() -> None:
    run_id = run_id_of(context(), LAKE)
    assert run_id == run_id_of(context(try_number=7), LAKE) == "20260101T123000Z-" + run_id[-8:]
    assert set(run_id) <= set("0123456789abcdefTZ-")


def test_run_ids_of_different_runs_differ_and_sort_by_time() -> None:
    changes: list[dict[str, Any]] = [{}, {"dag_id": "e"}, {"run_id": "x"}, {"task_id": "g.lock_and_record"}]
    changes += [{"map_index": 0}, {"map_index": 1}]
    found = {run_id_of(context(**change), LAKE) for change in changes}
    assert len(found) == len(changes)
    later = datetime(2026, 1, 1, 12, 30, 1, tzinfo=UTC)
    assert run_id_of(context(run_after=later), LAKE) > max(found)


def test_two_deployments_with_one_dag_and_run_are_two_runs() -> None:
    """What they keep on the source is named by the run's id: else they would drop each other's."""
    lakes = [lake_of(target, "shop") for target in ("s3://lake/raw", "s3://lake/raw2", "s3://{source}/raw", "/lake")]
    assert len({run_id_of(context(), lake) for lake in lakes}) == len(lakes)
    assert run_id_of(context(), lake_of("s3://lake/raw//", "shop")) == run_id_of(context(), lakes[0])


@pytest.mark.parametrize(
    ("conn_id", "part"),
    [("cdc_mysql", "cdc_mysql"), ("shop-eu", "shop-eu"), ("a/../b", "a~2F~2E~2E~2Fb"), ("é", "~C3~A9")],
)
def test_the_source_in_a_target_is_one_part_of_its_path(conn_id: str, part: str) -> None:
    assert lake_of("s3://lake/{source}/raw", conn_id) == f"s3://lake/{part}/raw"


@pytest.mark.parametrize("target", ["s3://lake/{table}", "/lake/{ source }", "/lake/{}"])
def test_a_placeholder_that_is_unknown_is_refused(target: str) -> None:
    with pytest.raises(ConfigurationError, match="placeholder"):
        lake_of(target, "shop")


@pytest.mark.parametrize("bad", ["s3://key:s3cr3t-h0rse@lake/raw", "s3://lake/raw?secret_key=s3cr3t-h0rse"])
def test_a_secret_in_a_target_is_in_nothing_that_airflow_keeps(tmp_path: Path, bad: str) -> None:
    with DAG("d", schedule=None, params={"target": bad}):
        task = operator(tmp_path)
        task.target = "{{ params.target }}"
    task.render_template_fields({"params": {"target": bad}})
    assert "s3cr3t" not in task.target
    with pytest.raises(AirflowFailException, match="cannot be used as a folder") as refusal:
        task.execute(context())
    assert "s3cr3t" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def meet(count: int) -> Callable[[], None]:
    """Each waits until all are there."""
    barrier = threading.Barrier(count)

    def wait() -> None:
        barrier.wait(60)

    return wait


def test_of_two_tries_at_the_same_time_both_tell_the_position_that_counts(source: FakeSource, tmp_path: Path) -> None:
    source.meanwhile = meet(2)
    with ThreadPoolExecutor(2) as tries:
        first, second = tries.map(lambda _: operator(tmp_path).execute(context()), range(2))
    assert first == second
    assert Run.load(Storage(first["run_uri"])).manifest.initial_position == first["initial_gtid_set"]


def test_a_try_that_was_too_slow_releases_what_it_made_and_nothing_else(source: FakeSource, tmp_path: Path) -> None:
    source.meanwhile = meet(2)
    source.keeps = True
    with ThreadPoolExecutor(2) as tries:
        first, _ = tries.map(lambda _: operator(tmp_path).execute(context()), range(2))
    counts = Run.load(Storage(first["run_uri"])).manifest.identity
    assert len(source.released) == 1
    assert counts.slot not in source.released
