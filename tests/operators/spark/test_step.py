"""Submitting a Spark app: its arguments, what must stay secret, and how its errors are reported.

A script takes the place of spark-submit; the real one runs in tests/dags.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.openlineage.utils import spark as lineage
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

import airflow_provider_cdc
from airflow_provider_cdc.assets import copies_alias, table_asset
from airflow_provider_cdc.core.run.manifest import FeedGap, MissedPast, RunTable
from airflow_provider_cdc.core.run.results import TableRead
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.runtime.driver import TRY_VARIABLE, done_file, error_file
from airflow_provider_cdc.operators.base import run_id_for
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.release import release_of_task
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.operators.spark.launchers.client.launcher import LastLines, failed, spark_app
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
from airflow_provider_cdc.operators.spark.step import SparkStepOperator
from tests.runs import consolidate_result, manifest_of, snapshot_result
from tests.seeds import some

PASSWORD = "corr3ct-horse"
POSITION = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
FOUND = snapshot_result(
    rows=3,
    snapshot_upper="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9",
    log_end="binlog.000001:4",
    tables={"shop.orders": TableRead(3, 1, 1, 400)},
)
GAP = FeedGap("before", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-2", "TRUNCATE TABLE (binlog.000003:4)", 8)
GAPS = {"shop.orders": GAP}
PUBLISHED = consolidate_result(published={"shop.orders": "file:///x"}, rows={"shop.orders": 3}, feed_gaps=GAPS)
MISSED = MissedPast("2026-01-01T00:00:00+00:00", "server: was started after the time that is asked for")
LATEST = {"shop.orders": False, "shop.lines": True}

SUBMIT = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
uri = sys.argv[sys.argv.index("--run-uri") + 1]
def write(name, content):
    path = Path(uri.removeprefix("file://"), name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
write("seen.json", {{"argv": sys.argv[1:], "environment": dict(os.environ)}})
print("snapshot: 1 of 2 chunks")
failure = os.environ.get("TEST_FAILURE")
if failure == "hang":
    os.execvp("sleep", ["sleep", "300"])
if failure == "crash":
    # Meanwhile an earlier try, presumed dead, fails for a reason of its own.
    for name in ("errors/snapshot.json", "errors/snapshot-other.json"):
        write(name, {{"type": "LogGone", "message": "old", "terminal": True}})
    sys.exit("java.lang.OutOfMemoryError")
if failure == "silent":
    print(os.environ["TEST_SAYS"], file=sys.stderr)
    sys.exit(3)
if failure:
    write({error_file("snapshot", "TRY")!r}.replace("TRY", os.environ[{TRY_VARIABLE!r}]), json.loads(failure))
    sys.exit(1)
if "TEST_FORGETS" not in os.environ:
    # Only an application that does its step needs the package, whose import takes a second.
    sys.path.insert(0, {str(Path(airflow_provider_cdc.__file__).parents[1])!r})
    from airflow_provider_cdc.core.run.results import ConsolidateResult, FeedGap, SnapshotResult, TableRead
    from airflow_provider_cdc.core.run.run import Run
    from airflow_provider_cdc.core.storage.folder import Storage
    from tests.runs import publish
    begun = Run.load(Storage(uri))
    begun.finish_step("snapshot", {FOUND!r})
    publish(begun, {PUBLISHED!r})
    write("latest.json", {LATEST!r})
if "TEST_BREAKS_LATER" in os.environ:
    sys.exit("java.lang.OutOfMemoryError")
"""


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    orders = RunTable(Table(TableName("shop", "orders"), (Column("id", "int", False),), ("id",)), "watermark", "")
    more: dict[str, Any] = {"tables": (orders,), "missed_past": MISSED}
    return Run.create(manifest_of(Storage(tmp_path.as_uri()), initial_position=POSITION, **more)).folder


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", f"{submit.parent}{os.pathsep}{os.environ['PATH']}")
    shop = {"conn_type": "cdc_mysql", "host": "db", "login": "cdc", "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    ours = "CDC_SOURCE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "TEST_FAILURE", "TEST_FORGETS", "TEST_BREAKS_LATER"
    for name in ours:
        monkeypatch.delenv(name, raising=False)


WHEN = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT: Any = {
    "ti": SimpleNamespace(dag_id="my dag", task_id="snapshot", map_index=-1, try_number=1, xcom_push=lambda **_: None),
    "dag_run": SimpleNamespace(dag_id="my dag", run_id="r", run_after=WHEN),
    "outlet_events": OutletEventAccessors(),
}


def operator(run: Storage, kind: type[SparkStepOperator] = SnapshotOperator, **arguments: Any) -> Any:
    return kind(task_id="t", source_conn_id="shop", run_uri=run.uri, spark_conn_id="spark", **arguments)


def seen(run: Storage) -> tuple[list[str], dict[str, str]]:
    what = run.read_json("seen.json")
    return what["argv"], what["environment"]


@pytest.mark.slow
def test_step_pushes_its_outputs_and_counts_and_nothing_for_other_steps(
    run: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__CDC__PRODUCTION_TARGETS", "s3://lake/raw")
    assert operator(run).execute(CONTEXT) == {
        "snapshot_upper": FOUND.snapshot_upper,
        "counts": {
            "rows": 3,
            "tables": {"shop.orders": {"rows": 3, "chunks": 1, "files": 1, "bytes": 400}},
            "nulled": {},
            "lock_seconds": 0.0,
            "skipped": {},
            "seconds": 0.0,
            "keys_again": 0,
            "view_seconds": 0.0,
            "replicas": {},
        },
    }
    alias, orders = copies_alias("my dag", "g"), table_asset("shop", "shop.orders")
    consolidate = operator(run, ConsolidateOperator, outlets=[alias, orders])
    assert consolidate.execute(CONTEXT) == {
        "published": {"shop.orders": "file:///x"},
        "latest": LATEST,
        "skipped": {},
        "removed": {},
        "superseded": {},
        "feed_gaps": {"shop.orders": {"base": GAP.base, "start": GAP.start, "reason": GAP.reason, "first": 8}},
        "position": "",
        "counts": {
            "rows": {"shop.orders": 3},
            "rewound": {},
            "nulled": {},
            "files_rewritten": 0,
            "files_adopted": 0,
            "changes": {},
            "scrubbed": 0,
            "shards": {},
            "seconds": 0.0,
        },
    }
    (event,) = CONTEXT["outlet_events"][alias].asset_alias_events
    # Neither the latest copy nor in production.
    apart = table_asset("shop", "shop.orders", target=str(tmp_path), past=True)
    assert event.dest_asset_key.uri == apart.uri != orders.uri
    # Airflow makes an event of each asset that is still among them.
    assert consolidate.outlets == [alias]
    assert event.extra.pop("schema_digest")
    assert event.extra.pop("certificate")["rows"] == 3
    assert event.extra == {
        "run_id": Run.load(run).run_id,
        "position": POSITION,
        "initial_gtid_set": POSITION,
        "rows": 3,
        "path": "file:///x",
        "latest": False,
        "missed_as_of": MISSED.as_of,
        "feed_gap": {"from_run_id": GAP.base, "from": GAP.start, "reason": GAP.reason},
    }
    # The run succeeds, but readers see another copy, so the log must state this clearly.
    said = capfd.readouterr().out
    assert f"{tmp_path.as_uri()} is not a production target of shop" in said
    assert f"not at {MISSED.as_of}" in said
    assert MISSED.why in said
    assert f"the feed ended at {GAP.start} (run before), and begins anew at {POSITION}: {GAP.reason}" in said
    (told,) = (line for line in said.splitlines() if "still names a newer copy" in line)
    assert "[warning" in told
    assert "shop.orders is published at file:///x" in told


def shared(run: Storage) -> tuple[Any, Any]:
    """A task that shares its application with the one after it, and its context."""
    with DAG("my_dag") as dag:
        task = operator(run, shared_app_seconds=60.0)
        task >> ConsolidateOperator(
            task_id="later", source_conn_id="shop", run_uri=run.uri, spark_conn_id="spark", shared_app_seconds=60.0
        )
    return task, {**CONTEXT, "dag": dag}


@pytest.mark.slow
def test_an_app_is_told_what_to_go_on_with(run: Storage) -> None:
    task, context = shared(run)
    task.execute(context)
    assert seen(run)[0][-4:] == ["--run-uri", run.uri, "--then=consolidate", "--within=60.0"]


@pytest.mark.slow
def test_what_the_app_of_an_earlier_task_did_is_handed_on_and_done_again_only_if_the_task_is_cleared(
    run: Storage,
) -> None:
    task, context = shared(run)
    task.execute(context)
    run.delete_file("seen.json")
    run.write_json(done_file("snapshot"), {})
    assert task.execute(context)["counts"]["rows"] == 3
    assert not run.exists("seen.json")
    cleared = SimpleNamespace(**{**vars(context["ti"]), "try_number": 2})
    assert task.execute({**context, "ti": cleared})["counts"]["rows"] == 3
    assert run.exists("seen.json")


@pytest.mark.slow
def test_what_an_app_did_counts_once_and_only_for_the_manifest_that_counts(run: Storage) -> None:
    task, context = shared(run)
    run.write_json(done_file("snapshot"), {})
    # The run has started over since, so nothing is recorded for its current manifest.
    task.execute(context)
    assert run.exists("seen.json"), "the step is done"
    run.delete_file("seen.json")
    run.write_json(done_file("snapshot"), {})
    for handed_on in (True, False):
        # The DAG run was deleted and made again, with tasks that were never tried.
        task.execute(context)
        assert run.exists("seen.json") is not handed_on


@pytest.mark.parametrize("own", ["done", "not done"])
def test_an_app_that_breaks_in_a_later_step_fails_the_task_only_if_its_own_is_not_done(
    own: str, run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_BREAKS_LATER", "")
    task, context = shared(run)
    if own == "done":
        assert task.execute(context)["counts"]["rows"] == 3
    else:
        monkeypatch.setenv("TEST_FORGETS", "")
        with pytest.raises(AirflowException, match="ended with status 1"):
            task.execute(context)


def test_credentials_reach_the_driver_by_its_environment_alone(
    run: Storage, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    task = operator(run)
    before = dict(os.environ)
    with caplog.at_level("DEBUG"):
        task.execute(CONTEXT)
    argv, environment = seen(run)
    assert json.loads(environment["CDC_SOURCE"])["password"] == PASSWORD
    assert PASSWORD not in " ".join(argv)
    assert PASSWORD not in caplog.text
    assert PASSWORD not in "".join(capfd.readouterr())
    rendered = {name: getattr(task, name) for name in task.template_fields}
    assert PASSWORD not in repr((rendered, vars(task)))
    assert dict(os.environ) == before


@pytest.mark.slow
def test_app_gets_the_run_and_the_package_and_local_workers_our_python(run: Storage) -> None:
    operator(run, conf={"spark.executor.cores": "2", "spark.log.level": "INFO"}).execute(CONTEXT)
    argv, environment = seen(run)
    app, *arguments = argv[-3:]
    assert Path(app).name == "snapshot.py"
    assert arguments == ["--run-uri", run.uri]
    assert argv[argv.index("--master") + 1] == "local[2]"
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    assert argv[argv.index("--py-files") + 1].endswith(".zip")
    assert argv[argv.index("--name") + 1] == "my_dag.snapshot.20260101T000000Z-00000000"
    assert "spark.executor.cores=2" in argv
    assert "spark.log.level=INFO" in argv
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_default_args_of_a_dag_have_arguments_of_spark_submit(run: Storage) -> None:
    with DAG("my_dag", default_args={"driver_memory": "2g", "num_executors": 3, "yarn_queue": "nightly"}):
        task = operator(run, executor_cores=2)
    task.execute(CONTEXT)
    pairs = list(pairwise(seen(run)[0]))
    for pair in ("--driver-memory 2g", "--num-executors 3", "--queue nightly", "--executor-cores 2"):
        assert tuple(pair.split()) in pairs


def test_openlineage_s_properties_reach_spark_if_airflow_is_configured_so(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_TRANSPORT_INFO", "True")
    given: dict[str, Any] = {}

    def inject(properties: dict[str, Any], context: Any) -> dict[str, Any]:
        given.update(properties)
        return {**properties, "spark.openlineage.transport.type": "console"}

    monkeypatch.setattr(lineage, "inject_transport_information_into_spark_properties", inject)
    operator(run, conf={"spark.executor.cores": "2"}).execute(CONTEXT)
    assert given["spark.executor.cores"] == "2"
    assert "spark.openlineage.transport.type=console" in seen(run)[0]


def test_options_that_someone_gave_the_driver_s_jvm_have_the_last_word(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=4 -Dmine=1")
    operator(run).execute(CONTEXT)
    _, environment = seen(run)
    assert environment["SPARK_SUBMIT_OPTS"].endswith(" -XX:TieredStopAtLevel=1 -XX:TieredStopAtLevel=4 -Dmine=1")


@pytest.mark.slow
def test_workers_of_a_cluster_keep_their_own_python(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "spark://m", "port": 7077}))
    operator(run).execute(CONTEXT)
    argv, environment = seen(run)
    assert argv[argv.index("--master") + 1] == "spark://m:7077"
    assert "PYSPARK_PYTHON" not in environment


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_what_the_app_said_is_what_the_task_says(run: Storage, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    error = {"type": "LogGone", "message": "the log is gone\n  Hint: a new run", "terminal": terminal}
    monkeypatch.setenv("TEST_FAILURE", json.dumps(error))
    with pytest.raises(AirflowException) as failed:
        operator(run).execute(CONTEXT)
    assert type(failed.value).__name__ == "LogGone"
    assert isinstance(failed.value, AirflowFailException) == terminal
    assert str(failed.value) == error["message"]


@pytest.mark.parametrize("record", some("{}", "[]", '{"terminal": true}', "null", '"LogGone"'))
def test_what_the_app_said_may_be_damaged(run: Storage, monkeypatch: pytest.MonkeyPatch, record: str) -> None:
    """It is then unknown whether a retry may help, so the task is retried."""
    monkeypatch.setenv("TEST_FAILURE", record)
    with pytest.raises(AirflowException) as failed:
        operator(run).execute(CONTEXT)
    assert not isinstance(failed.value, AirflowFailException)


def test_error_of_an_earlier_try_is_not_taken_for_that_of_a_crash(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write_json("errors/snapshot.json", {"type": "LogGone", "message": "old", "terminal": True})
    monkeypatch.setenv("TEST_FAILURE", "crash")
    with pytest.raises(AirflowException, match="OutOfMemoryError") as failed:
        operator(run).execute(CONTEXT)
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.parametrize(
    ("said", "hint"),
    some(
        ("java.lang.OutOfMemoryError: Java heap space\n\tat a.B.c(D.java:1)\n\t... 9 more", "spark.driver.memory"),
        ("something else", "in the log of this task"),
        ("OSError: [Errno 28] No space left on device", "free disk space"),
        ("JAVA_HOME is not set", "install Java 17"),
        ("WARN: Failed to connect to master db:7077", "spark_conn_id"),
        plain=2,
    ),
)
def test_an_app_that_dies_without_a_word_of_ours_says_how_and_what_may_help(
    run: Storage, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    monkeypatch.setenv("TEST_FAILURE", "silent")
    monkeypatch.setenv("TEST_SAYS", said)
    with pytest.raises(AirflowException) as failed:
        operator(run).execute(CONTEXT)
    assert type(failed.value).__name__ == "SparkFailed"
    assert not isinstance(failed.value, AirflowFailException), "a retry may help"
    text, _, told = str(failed.value).partition("Hint: ")
    assert text.startswith("[CDC-1504] snapshot: spark-submit ended with status 3")
    # The line, and neither Java's frames nor the whole command.
    assert said.splitlines()[0] in text
    assert "D.java" not in text
    assert "--conf" not in text
    assert hint in told


def test_app_that_records_nothing_has_not_done_its_step(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_FORGETS", "1")
    with pytest.raises(AirflowFailException, match="not recorded as done"):
        operator(run).execute(CONTEXT)


def test_run_without_manifest_is_an_error_that_names_the_hint(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"there is no manifest\n.*clear the task `lock_and_record`"):
        SnapshotOperator(
            task_id="t", source_conn_id="nowhere", run_uri=tmp_path.as_uri(), spark_conn_id="spark"
        ).execute(CONTEXT)


@pytest.mark.parametrize("run_uri", [None, 7, ["file:///lake/_runs/r"], {"uri": "file:///lake/_runs/r"}])
def test_a_run_that_is_no_text_is_told_with_the_task_that_leaves_it(run_uri: object) -> None:
    """As when the XCom is gone, or another value was put in its place."""
    operator = SnapshotOperator(task_id="t", source_conn_id="shop", run_uri=run_uri, spark_conn_id="spark")
    with pytest.raises(AirflowFailException, match="not the folder of a run") as refusal:
        operator.execute(CONTEXT)
    assert "clear the task `lock_and_record`" in str(refusal.value)


def test_a_step_does_not_take_the_finished_run_of_another_dag_run_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An XCom can be edited. There would be nothing left to do, and no copy of this DAG run."""
    lake = Storage(tmp_path.as_uri())
    with DAG("d"):
        recording = LockAndRecordOperator(task_id="record", source_conn_id="shop", target=lake.uri, plan=[], options={})
        operator = SnapshotOperator(
            task_id="t", source_conn_id="shop", run_uri=recording.output["run_uri"], spark_conn_id="spark"
        )
    own, other = (
        run_id_for(SimpleNamespace(dag_id="my dag", run_id=run_id, run_after=WHEN), "record", lake.uri, -1)
        for run_id in ("r", "yesterday's")
    )
    for run_id in (own, other):
        begun = Run.create(manifest_of(lake, run_id=run_id, initial_position=POSITION))
        begun.finish_step("snapshot", FOUND)
        begun.folder.write_json(done_file("snapshot"), {})
    operator.run_uri = lake.folder("_runs", other).uri
    with pytest.raises(
        AirflowFailException, match="is not the folder of the run that the task record of this DAG run began"
    ) as refusal:
        operator.execute(CONTEXT)
    assert "clear the task `lock_and_record`" in str(refusal.value)
    assert not lake.folder("_runs", other).exists("report.html")
    released: list[str] = []
    monkeypatch.setattr(operator, "release", lambda run, settings: released.append(run.uri))
    callback: Any = {**CONTEXT, "ti": SimpleNamespace(**vars(CONTEXT["ti"]) | {"task": operator})}
    release_of_task(callback)
    assert not released, "the slot of the other run, which may be in progress, must stay"
    operator.run_uri = lake.folder("_runs", own).uri
    release_of_task(callback)
    assert released == [operator.run_uri]
    assert operator.execute(CONTEXT)["snapshot_upper"] == FOUND.snapshot_upper


def test_killing_a_task_that_never_submitted_does_nothing(run: Storage) -> None:
    operator(run).on_kill()


def test_killing_a_task_ends_spark_submit_and_blames_no_lack_of_memory(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_FAILURE", "hang")
    task = operator(run)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task.execute, CONTEXT)
        while not run.exists("seen.json"):
            assert not running.done(), running.result()
            time.sleep(0.05)
        task.on_kill()
        with pytest.raises(AirflowException, match="Airflow ended this task") as ended:
            running.result(120)
    assert "was marked or cleared" in str(ended.value).partition("Hint: ")[2]
    for number, hint in ((signal.SIGKILL, "run out of memory"), (signal.SIGTERM, "got SIGTERM, and not from Airflow")):
        for status in (-number, 128 + number):
            assert hint in failed(status, LastLines()).hint
    assert "see the whole output" in failed(1, LastLines()).hint


def test_missing_spark_connection_is_an_error_and_not_yarn() -> None:
    with pytest.raises(ConfigurationError, match="the connection does not exist"):
        check_spark(open_launcher("nowhere", {}))


@pytest.mark.parametrize("by", ["connection", "property"])
def test_cluster_mode_is_refused(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"spark.submit.deployMode": "cluster"} if by == "property" else {}
    if by == "connection":
        connection = {"conn_type": "spark", "host": "spark://m", "port": 7077, "extra": {"deploy-mode": "cluster"}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(connection))
    with pytest.raises(ConfigurationError, match="cluster"):
        check_spark(open_launcher("spark", properties))


def test_mixture_of_two_pysparks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "4.2.0", "pyspark-client": "4.3.0"}
    monkeypatch.setattr("airflow_provider_cdc.jobs.runtime.driver.version", versions.get)
    with pytest.raises(ConfigurationError, match=r"4\.3\.0"):
        check_spark(open_launcher("spark", {}))


def test_missing_spark_submit_is_told_before_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    monkeypatch.setenv("PATH", "/nowhere/else")
    with pytest.raises(ConfigurationError, match="spark-submit"):
        check_spark(open_launcher("spark", {}))


def test_spark_submit_beside_the_interpreter_is_found_without_an_activated_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    check_spark(open_launcher("spark", {}))


def test_apps_are_found_in_a_wheel_and_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("snapshot", "extract_delta", "consolidate"):
        assert spark_app(name).is_file()
    package = tmp_path / "airflow_provider_cdc"
    monkeypatch.setattr(airflow_provider_cdc, "__file__", str(package / "__init__.py"))
    with pytest.raises(ConfigurationError, match="snapshot"):
        spark_app("snapshot")
    for folder in (tmp_path, package):
        (folder / "spark_apps").mkdir(parents=True)
        (folder / "spark_apps" / "snapshot.py").touch()
        assert spark_app("snapshot") == folder / "spark_apps" / "snapshot.py"
