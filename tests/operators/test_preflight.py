"""What preflight rejects before any work: what the author does not allow, and names that collide in the lake."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_cdc import Allow
from airflow_provider_cdc.core.run.manifest import RunTable, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import NAME_BYTES, Table, TableName, folder_name
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.operators.arguments.options import Given
from airflow_provider_cdc.operators.planning import plan_text
from airflow_provider_cdc.operators.planning.lake_checks import check_names, find_leftovers, log_leftovers
from airflow_provider_cdc.operators.preflight import PreflightOperator
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from tests.runs import commit, consolidate_result, delta_result, manifest_of, publish, snapshot_result


def preflight(target: str, conf: Mapping[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    limits = {name: arguments.pop(name) for name in ("source_conn_ids", "targets", "strict_conf") if name in arguments}
    values = {"source_conn_id": "shop", "tables": ["*.accounts"], "spark_conn_id": "spark", **arguments}
    given = Given({"target": "{{ params.target }}", **values}, Allow(**limits), {})
    with DAG("d", schedule=None, params={"target": target, "tables": ["a.b"]}) as dag:
        task = PreflightOperator.of_options(given, "preflight")
    context: Any = {"dag": dag, "dag_run": SimpleNamespace(conf=conf or {}), "params": {"target": target}}
    context["ti"] = SimpleNamespace(xcom_push=lambda **_: None)
    task.render_template_fields(context)
    assert "s3cr3t" not in task.target
    return task.execute(context)


@pytest.fixture
def shop(mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A MySQL with a table `accounts`, behind the connection `shop`; the name of its schema."""
    mysql.query(f"CREATE TABLE {schema}.accounts (id int PRIMARY KEY)")
    connection = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    return schema


@pytest.mark.slow
def test_two_sources_and_one_target_are_refused_unless_the_target_tells_them_apart(
    postgres: PostgresServer, database: str, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.query(
        f"CREATE SCHEMA {shop}; CREATE TABLE {shop}.accounts (id int PRIMARY KEY);"
        f"ALTER TABLE {shop}.accounts REPLICA IDENTITY FULL",
        database=database,
    )
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "cdc_postgres", **fields}))
    tables = [f"{shop}.accounts"]
    lake = Storage(tmp_path.as_uri())
    lake.write_json(f"{shop}.accounts/_latest.json", {"run_id": "r1", "initial_lsn": "0/5"})
    with pytest.raises(AirflowFailException, match="another source: kind postgres") as refusal:
        preflight(lake.uri, tables=tables)
    assert "{source}" in str(refusal.value)
    for conn_id in ("shop", "other"):
        preflight(f"{lake.uri}/{{source}}", tables=tables, source_conn_id=conn_id)
    assert lake.folders() == ["other", "shop", f"{shop}.accounts"]
    preflight(lake.uri, tables=tables, source_conn_id="other")


def test_columns_that_some_readers_misread_are_named(
    postgres: PostgresServer,
    database: str,
    shop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rules are tested with the readers, in tests/sinks/test_reader_names.py."""
    for name in ("odd", "plain"):
        postgres.query(
            f'CREATE TABLE {name} (id int PRIMARY KEY, snapshot text, at time, "A" int, a int, _pos int);'
            f"ALTER TABLE {name} REPLICA IDENTITY FULL",
            database=database,
        )
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "cdc_postgres", **fields}))

    def named(**options: Any) -> list[str]:
        caplog.clear()
        given: dict[str, Any] = {"source_conn_id": "other", "tables": ["public.*"], "columns": {"public.plain": ["a"]}}
        with caplog.at_level(logging.WARNING):
            preflight((tmp_path / "year=2026").as_uri(), **given, **options)
        return [one.getMessage().partition(": ")[0] for one in caplog.records if "DuckDB" in one.getMessage()] + [
            one.getMessage().partition(": ")[0] for one in caplog.records if "Spark refuses" in one.getMessage()
        ]

    alike = "public.odd.A, public.odd.a"
    path = "the path of the target has year=…. DuckDB's read_parquet in SQL, and PyArrow's"
    *names, of_path, times = named()
    assert (names, times) == ([alike, "public.odd.snapshot"], "public.odd.at")
    assert of_path.startswith(path)
    assert named(format="iceberg") == [alike, "public.odd._pos"]


def test_a_codec_that_the_libraries_of_the_worker_lack_is_refused(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyArrow's wheels have all codecs, and builds from source may lack some.
    monkeypatch.setattr(pa, "Codec", SimpleNamespace(is_available=lambda codec: codec == "snappy"))
    with pytest.raises(AirflowFailException, match="was built without the codec zstd") as refusal:
        preflight(tmp_path.as_uri(), tables=[f"{shop}.accounts"])
    assert "choose one that it has: snappy" in str(refusal.value)
    preflight(tmp_path.as_uri(), tables=[f"{shop}.accounts"], compression="snappy")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"source_conn_ids": ["cdc_*"]}, "parameter source_conn_id"),
        ({"source_conn_ids": []}, "AIRFLOW__CDC__SOURCE_CONN_IDS"),
        ({"source_conn_ids": ["shop"], "read_conn_ids": ["other"]}, "parameter read_conn_ids"),
        ({"source_conn_ids": ["shop"], "log_conn_id": "other"}, "parameter log_conn_id"),
        ({"targets": []}, "AIRFLOW__CDC__TARGETS"),
        ({"targets": ["s3://lake"]}, "parameter target"),
        ({"targets": ["file:///no", "/nowhere"], "source_conn_ids": ["none"]}, "2 problems"),
    ],
)
def test_what_the_author_does_not_allow_is_not_touched(tmp_path: Path, arguments: dict[str, Any], what: str) -> None:
    # There are no such connections: nothing asks for them.
    with pytest.raises(AirflowFailException, match="does not allow") as refusal:
        preflight((tmp_path / "lake").as_uri(), **arguments)
    assert what in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_the_author_allows_is_taken(shop: str, tmp_path: Path) -> None:
    lake = (tmp_path / "lake").as_uri()
    tables = [f"{shop}.accounts"]
    for targets in ([lake], [str(tmp_path)], ["s3://x", f"{tmp_path.as_uri()}/{{source}}", f"{tmp_path}/l*e"], ["*"]):
        assert preflight(lake, tables=tables, source_conn_ids=["sh*"], targets=targets)["plan"]
    with pytest.raises(AirflowFailException, match="does not allow"):
        preflight(f"{lake}2", tables=tables, targets=[lake])


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("cdc_mysql", "is the source itself"),
        ("cdc_postgres", "it is a postgres connection, but the source is mysql"),
        ("", "the connection does not exist"),
    ],
)
def test_a_replica_that_cannot_be_read_is_named(
    kind: str, what: str, shop: str, mysql: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind:
        replica = {"conn_type": kind, "host": mysql.host, "port": mysql.port, "login": "root"}
        monkeypatch.setenv("AIRFLOW_CONN_REPLICA", json.dumps(replica))
    with pytest.raises(AirflowFailException, match=what) as refusal:
        preflight((tmp_path / "lake").as_uri(), tables=[f"{shop}.accounts"], read_conn_ids=["replica"])
    assert kind == "cdc_mysql" or "parameter read_conn_ids (Read.read_conn_ids), 'replica'" in str(refusal.value)


def test_a_part_of_a_table_is_planned_with_what_the_server_is_asked_for(shop: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"tables": [f"{shop}.accounts"], "where": {f"{shop}.*": "id > {{ 1 + 2 }}"}}
    found = preflight(tmp_path.as_uri(), **given)["plan"]
    (plan,) = records.decode(list[TablePlan], json.loads(json.dumps(found)), "the plan")
    assert plan.selection.condition == '"id" > 3'
    assert "the server sends only rows where `id` > 3" in plan.reason
    with pytest.raises(
        AirflowFailException, match=r"parameter where \(Table\.where\), .*, line 1, column 8(.|\n)*Hint"
    ):
        preflight(tmp_path.as_uri(), tables=given["tables"], where={f"{shop}.*": "id > 1 <=> 2"})


def test_what_is_wrong_with_a_condition_is_told_once(shop: str, tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match="no column ic") as refusal:
        preflight(tmp_path.as_uri(), tables=[f"{shop}.accounts"], where={f"{shop}.*": "ic > 1"})
    assert str(refusal.value).count("no column ic") == 1


def test_a_key_of_the_conf_that_nobody_reads_is_named(shop: str, tmp_path: Path) -> None:
    lake, tables = tmp_path.as_uri(), [f"{shop}.accounts"]
    with pytest.raises(AirflowFailException, match=r"conf key 'tabels'(.|\n)*did you mean tables\?"):
        preflight(lake, {"tabels": ["a.c"], "target": lake}, strict_conf=True)
    preflight(lake, {"target": lake}, tables=tables, strict_conf=True)
    preflight(lake, {"for_another_task": 1}, tables=tables)


BAD = {
    "no such table": (
        {"tables": ["{shop}.accounts", "{shop}.account", "nowhere.*"]},
        {},
        ["{shop}.account:", "did you mean {shop}.accounts?", "nowhere.*"],
    ),
    "wrong password": (
        {},
        {"SHOP": {"password": "s3cr3t"}},
        ["the server refuses this user or password"],
    ),
    "no source": ({"source_conn_id": "elsewhere"}, {}, ["elsewhere", "the connection does not exist"]),
    "a path that is no place": ({"target": "lake/raw"}, {}, ["'lake/raw' cannot be used as a folder"]),
    "a scheme that is none": ({"target": "nothing://lake"}, {}, ["'nothing://lake' cannot be used as a folder"]),
    "no host": ({"target": "s3:/bucket"}, {}, ["'s3:/bucket' cannot be used as a folder"]),
    "below a file": ({"target": "{file}/lake"}, {}, ["the target cannot be written to"]),
    # It does not mean YARN.
    "no Spark": ({"spark_conn_id": "nothing"}, {}, ["nothing", "the connection does not exist"]),
    # It would need the password in argv.
    "cluster mode": (
        {},
        {"SPARK": {"host": "spark://m", "port": 7077, "extra": {"deploy-mode": "cluster"}}},
        ["the deploy mode of the connection is cluster"],
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_told_before_any_work(
    what: str, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    arguments, connections, told = json.loads(
        json.dumps(BAD[what]).replace("{shop}", shop).replace("{file}", (tmp_path / "file").as_uri())
    )
    for name, fields in connections.items():
        variable = f"AIRFLOW_CONN_{name}"
        monkeypatch.setenv(variable, json.dumps({**json.loads(os.environ[variable]), **fields}))
    given = {"tables": [f"{shop}.accounts"], "target": (tmp_path / "lake").as_uri(), **arguments}
    # Airflow does not try again what fails so.
    with pytest.raises(AirflowFailException, match=r"^\[CDC-\d+\] [12] problems? found") as refusal:
        preflight(given.pop("target"), **given)
    for text in told:
        assert text in str(refusal.value)
    assert "s3cr3t" not in str(refusal.value)


def test_a_spark_that_cannot_start_is_told_with_all_other_problems(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[2]", "port": 80}))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(AirflowFailException, match="3 problems found") as refusal:
        preflight(tmp_path.as_uri(), tables=[f"{shop}.nothing"])
    for text in ("local[2]:80", "JAVA_HOME", f"{shop}.nothing"):
        assert text in str(refusal.value)


def test_a_master_that_is_down_fails_preflight_so_that_airflow_tries_again(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "spark://127.0.0.1", "port": 1}))
    with pytest.raises(AirflowException, match="does not accept connections") as refusal:
        preflight(tmp_path.as_uri(), tables=[f"{shop}.accounts"])
    assert not isinstance(refusal.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match="2 problems found") as refusal:
        preflight(tmp_path.as_uri(), tables=[f"{shop}.nothing"])
    assert "does not accept connections" in str(refusal.value)


@pytest.mark.parametrize("queue", ["default", "spark"])
def test_the_machine_of_preflight_is_checked_only_if_the_spark_steps_run_on_such_machines(
    queue: str, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with DAG("d", schedule=None) as dag:
        tables, target = [f"{shop}.accounts"], tmp_path.as_uri()
        task = PreflightOperator(
            task_id="preflight", source_conn_id="shop", spark_conn_id="spark", tables=tables, target=target
        )
        task >> SnapshotOperator(task_id="snapshot", source_conn_id="shop", run_uri="x", queue=queue)
    context: Any = {"dag": dag, "dag_run": SimpleNamespace(conf={}), "params": {}}
    context["ti"] = SimpleNamespace(xcom_push=lambda **_: None)
    task.render_template_fields(context)
    if queue == task.queue:
        with pytest.raises(AirflowFailException, match="JAVA_HOME"):
            task.execute(context)
    else:
        assert task.execute(context)["plan"]


@pytest.mark.parametrize(
    "bad", ["s3://key:s3cr3t@lake/raw", "s3://lake/raw?secret_key=s3cr3t", "abfs://:s3cr3t@a.blob.core.windows.net/c"]
)
def test_a_secret_in_the_target_is_not_printed(bad: str) -> None:
    with pytest.raises(AirflowFailException, match="cannot be used as a folder") as refusal:
        preflight(bad, targets=["s3://lake"])
    assert "s3cr3t" not in str(refusal.value)


def tables_of(*names: str) -> list[TableName]:
    return [TableName.parse(name) for name in names]


def test_names_that_a_store_takes_for_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Storage(tmp_path.as_uri())
    lake.make_folder("shop.Orders")
    check_names(lake, tables_of("shop.orders", "shop.T", "shop.t"))
    # Only root can mount such a disk.
    monkeypatch.setattr(Storage, "ignores_case", lambda self: True)
    with pytest.raises(PreflightError) as refusal:
        check_names(lake, tables_of("shop.orders", "shop.T", "shop.t", "Shop.t", "shop.u"))
    same, there = refusal.value.problems
    assert same.where == "shop.T, shop.t, Shop.t"
    assert (there.where, "shop.Orders" in there.what) == ("shop.orders", True)
    # What folds only in Unicode is written in ASCII, and never the same.
    check_names(lake, tables_of("shop.É", "shop.é", "shop.ß", "shop.SS", "shop.ı", "shop.İ", "shop.Orders"))


def test_a_store_that_heeds_case_is_told_from_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Storage(tmp_path.as_uri())
    assert not lake.ignores_case()
    path = Storage.path
    monkeypatch.setattr(Storage, "path", lambda self, name="": path(self, name.lower()))
    assert lake.ignores_case()
    assert not list(tmp_path.iterdir())


def test_names_in_any_alphabet_fit_every_file_system(tmp_path: Path) -> None:
    letters = "бухгалтерскаяотчётностьзапрошлыйгодпофилиалам"
    names = [TableName("магазин", (letters * 2)[:64]), TableName("магазин", (letters * 2)[1:65])]
    names += [TableName("🛒" * 64, "🛒" * 64), TableName("shop", "x" * 64), TableName("s" * 64, "t" * 190)]
    folders = [folder_name(name) for name in names]
    assert len({*folders}) == len(names)
    for folder in folders:
        assert len(folder.encode()) <= NAME_BYTES
        (tmp_path / folder).mkdir()
        assert "~~" not in folder.partition("~~")[0]
    # What fitted already is called what it was.
    assert folders[3:] == ["shop." + "x" * 64, "s" * 64 + "." + "t" * 190]


RUN = "20250101T000000Z-00000000"


def begin(lake: Storage, run_id: str, began: datetime) -> Run:
    table = RunTable(Table(TableName("shop", "orders"), ()), "watermark", "")
    run = Run.create(manifest_of(lake, run_id, created_at=began.isoformat(), tables=(table,)))
    run.folder.make_folder("chunks")
    return run


def test_what_failed_runs_left_is_named_once_they_are_old(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = Storage(tmp_path.as_uri())
    now = datetime.now(UTC)
    long_ago = now - timedelta(days=30)
    assert find_leftovers(lake.folder("_runs")) == []
    log_leftovers(lake.folder("_runs"))
    assert not caplog.records
    begin(lake, f"{now:%Y%m%dT%H%M%SZ}-00000000", now)
    # A backfill of last year that is in progress.
    begin(lake, "20250102T000000Z-00000000", now)
    published = begin(lake, "20250103T000000Z-00000000", long_ago)
    publish(published)
    lake.folder("_runs", "20250104T000000Z-00000000").make_folder("chunks")
    assert find_leftovers(lake.folder("_runs")) == []
    begun = begin(lake, RUN, long_ago)
    assert [found.folders for found in find_leftovers(lake.folder("_runs"))] == [(f"{lake.uri}/_runs/{RUN}",)]
    commit(begun)
    lake.make_folder(f"shop.orders/snapshot={RUN}")
    with caplog.at_level(logging.WARNING):
        log_leftovers(lake.folder("_runs"))
    assert f"{lake.uri}/_runs/{RUN}\n" in caplog.text
    assert f"{lake.uri}/shop.orders/snapshot={RUN}" in caplog.text
    # The try that published it was killed before it could record this; readers are directed to that copy.
    lake.write_json("shop.orders/_latest.json", {"run_id": RUN})
    assert [found.folders for found in find_leftovers(lake.folder("_runs"))] == [(f"{lake.uri}/_runs/{RUN}",)]


@pytest.mark.slow
def test_what_is_rolled_forward_and_why_not_is_in_the_plan(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [f"{shop}.accounts"]
    (plan,) = preflight(tmp_path.as_uri(), tables=tables, refresh="auto")["plan"]
    assert plan["base"] == ""
    assert plan["reason"].startswith("read in full: there is no copy yet; ")
    with pytest.raises(AirflowFailException, match="cannot be rolled forward: there is no copy yet"):
        preflight(tmp_path.as_uri(), tables=tables, refresh="changes")

    def chosen(source: Any, copies: Any, scratch: str, plans: list[TablePlan], options: Any) -> list[TablePlan]:
        return [replace(plan, base="r1") for plan in plans]

    monkeypatch.setattr("airflow_provider_cdc.jobs.begin.base_selection.choose", chosen)
    (plan,) = preflight(tmp_path.as_uri(), tables=tables, refresh="auto")["plan"]
    assert plan["base"] == "r1"


def test_a_plan_tells_what_a_run_would_do_and_leaves_nothing(
    shop: str, mysql: MysqlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mysql.query(f"INSERT INTO {shop}.accounts VALUES (1), (2)")
    target = tmp_path / "new" / "lake"
    found = preflight(target.as_uri(), tables=[f"{shop}.accounts"], plan_only=True)
    said = capsys.readouterr().out
    assert found.keys() == {"plan", "options", "skipped", "missed_past", "may_miss_past", "request", "summary"}
    assert "in total: 1 table, 0 of them rolled forward" in found["summary"]
    assert "time: unknown" in found["summary"]
    assert "runway: the source keeps its log for 30.0 days from now on (binlog_expire_logs_seconds)" in found["summary"]
    assert f"{shop}.accounts  watermark" in said
    assert found["summary"] in said
    assert not list(tmp_path.iterdir()), "not even the folder"


def test_a_plan_leaves_what_is_there(shop: str, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    preflight((tmp_path / "lake" / "raw").as_uri(), tables=[f"{shop}.accounts"], plan_only=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["lake"]


def test_a_plan_makes_no_standing_slot(
    postgres: PostgresServer, database: str, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.query("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY FULL", database=database)
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "cdc_postgres", **fields}))
    found = preflight(
        tmp_path.as_uri(), tables=["public.t"], source_conn_id="other", standing_slot="nightly", plan_only=True
    )
    assert "runway: max_slot_wal_keep_size is -1" in found["summary"]
    assert not postgres.query("SELECT 1 FROM pg_replication_slots", database=database)
    assert not postgres.query("SELECT 1 FROM pg_publication", database=database)


def test_a_plan_goes_by_how_fast_the_last_run_was(shop: str, mysql: MysqlServer, tmp_path: Path) -> None:
    lake = Storage(tmp_path.as_uri())
    found = {"initial_position": f"{'3e11fa47-71ca-11e1-9e33-c80aa9429562'}:1-5"}
    run = Run.create(manifest_of(lake, RUN, **found))
    run.finish_step("snapshot", snapshot_result(1000, seconds=2.0))
    run.finish_step("extract_delta", replace(delta_result(), seconds=3.0))
    publish(run, consolidate_result(seconds=4.0))
    folder = f"{shop}.accounts"
    lake.make_folder(f"{folder}/snapshot={RUN}")
    pq.write_table(pa.table({"id": [1]}), tmp_path / folder / f"snapshot={RUN}/part-0.parquet")
    path = f"{lake.uri}/{folder}/snapshot={RUN}"
    source = {"kind": "mysql", "connection": "shop"}
    lake.write_json(f"{folder}/_latest.json", {"run_id": RUN, "path": path, "source": source, "position": ""})
    mysql.query(
        f"INSERT INTO {shop}.accounts "
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n"
    )
    mysql.query(f"ANALYZE TABLE {shop}.accounts")
    told = preflight(lake.uri, tables=[f"{shop}.accounts"], plan_only=True)["summary"]
    assert f"because the run {RUN} read 500 rows/s and took 7 s for the other steps" in told
    assert "time: about 9 s" in told


@pytest.mark.slow
def test_a_plan_tells_how_long_the_snapshot_is_that_rows_are_read_again_in(
    postgres: PostgresServer,
    database: str,
    shop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tables of which the log tells no key are read in it as a whole, and it holds up VACUUM everywhere."""
    postgres.query(
        "CREATE TABLE keyed (id int PRIMARY KEY); CREATE TABLE bare (a int);"
        "INSERT INTO bare SELECT generate_series(1, 50000); ANALYZE bare",
        database=database,
    )
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": database}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "cdc_postgres", **fields}))
    (tmp_path / "one").mkdir()
    other: dict[str, Any] = {"source_conn_id": "other"}
    told = preflight((tmp_path / "one").as_uri(), tables=["public.keyed"], plan_only=True, **other)["summary"]
    assert "view: one snapshot of about 1 s, in which the last touched rows are read" in told
    told = preflight((tmp_path / "one").as_uri(), tables=["public.*"], plan_only=True, **other)["summary"]
    assert "in which 1 table without keys in the log must be read as a whole" in told
    assert "the largest is public.bare" in told
    assert "the server cannot remove dead rows" not in capsys.readouterr().out
    monkeypatch.setattr(plan_text, "_ROWS_PER_SECOND", 500)
    preflight((tmp_path / "one").as_uri(), tables=["public.*"], **other)
    said = capsys.readouterr().out
    assert "At its end, the run opens one snapshot of about 101 s" in said.replace("\n", " ")
    assert "the server cannot remove dead rows" in said
    postgres.query("ALTER TABLE keyed REPLICA IDENTITY FULL; ALTER TABLE bare REPLICA IDENTITY FULL", database=database)
    told = preflight((tmp_path / "one").as_uri(), tables=["public.*"], plan_only=True, **other)["summary"]
    assert "view:" not in told


@pytest.mark.parametrize(("rows", "seconds"), [(99_999, 6), (100_000, 11)])
def test_a_run_that_read_few_rows_does_not_tell_how_fast_many_are_read(rows: int, seconds: float) -> None:
    plans = [TablePlan(TableName("a", "b"), "exported", "", rows=1_000_000, at_upper=True)]
    view = plan_text.view_of(plans, plan_text.Pace("r1", 100_000.0, 0.0, rows))
    assert view is not None
    assert view.seconds == seconds


def test_what_is_for_another_kind_of_source_is_refused_where_the_conf_is_strict(shop: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"tables": [f"{shop}.accounts"], "standing_slot": "nightly"}
    with pytest.raises(
        AirflowFailException,
        match=r"parameter standing_slot \(Refresh.standing_slot\): applies only to PostgreSQL sources",
    ):
        preflight(tmp_path.as_uri(), strict_conf=True, **given)
    preflight(tmp_path.as_uri(), **given)
