"""Tables that are altered between preflight and lock_and_record: the run is planned again, and does not stop."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published
from harness.postgres_server import PostgresServer
from tests.operators.planning.test_missing_past import STANDING, preflight, record
from tests.operators.planning.test_missing_past import database_with_slot as database_with_slot
from tests.sources.postgres.backends import background, wait_for
from tests.sources.postgres.log.reading import settings as settings_of

NIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def alter_and_record(
    postgres: PostgresServer, database: str, target: Path, statement: str, **given: Any
) -> tuple[dict[str, Any], Run]:
    found, context = preflight(target, NIGHT, **{"as_of": "", "standing_slot": "", "refresh": "full", **given})
    postgres.query(statement, database=database)
    return found, record(target, found, context)


def test_a_table_that_lost_its_old_rows_is_planned_again(
    postgres: PostgresServer, database_with_slot: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alter = "ALTER TABLE stock REPLICA IDENTITY DEFAULT"
    found, run = alter_and_record(postgres, database_with_slot, tmp_path, alter)
    assert [plan["consistency"] for plan in found["plan"]] == ["watermark"]
    assert [entry.consistency for entry in run.manifest.tables] == ["again"]
    said = capfd.readouterr().out
    assert "The run is planned again" in said
    assert "again" in said.partition("will be copied")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNLOGGED TABLE u PARTITION OF tree FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE tree1 SET UNLOGGED",
        "CREATE FOREIGN TABLE f PARTITION OF tree FOR VALUES FROM (20) TO (30) SERVER nowhere",
    ],
    ids=["unlogged", "set unlogged", "foreign"],
)
def test_a_partition_that_cannot_be_published_is_refused_or_skipped_as_by_preflight(
    statement: str, postgres: PostgresServer, database_with_slot: str, tmp_path: Path
) -> None:
    postgres.query(
        """
        CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
        CREATE TABLE tree (id int NOT NULL) PARTITION BY RANGE (id); ALTER TABLE tree REPLICA IDENTITY FULL;
        CREATE TABLE tree1 PARTITION OF tree FOR VALUES FROM (0) TO (10); ALTER TABLE tree1 REPLICA IDENTITY FULL
        """,
        database=database_with_slot,
    )
    given: dict[str, Any] = {"tables": ["public.*"], "standing_slot": "", "as_of": "", "refresh": "full"}
    found, context = preflight(tmp_path, NIGHT, **given)
    skipping, _ = preflight(tmp_path, NIGHT, on_table_error="skip", **given)
    postgres.query(statement, database=database_with_slot)
    with pytest.raises(AirflowFailException, match=r"public\.tree: .*(unlogged|a foreign table)") as refused:
        record(tmp_path, found, context)
    with pytest.raises(AirflowFailException) as before:
        preflight(tmp_path, NIGHT, **given)
    assert str(refused.value).partition("problem")[2] == str(before.value).partition("problem")[2]
    run = record(tmp_path, skipping, context)
    assert [str(entry.table.name) for entry in run.manifest.tables] == ["public.stock"]
    assert list(run.manifest.skipped) == ["public.tree"]


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True], ids=["committed", "open"])
@pytest.mark.parametrize("statement", ["GRANT SELECT ON stock TO PUBLIC", "ALTER TABLE stock ADD n int DEFAULT 3"])
def test_a_night_whose_table_is_altered_after_preflight_does_not_stop(
    statement: str,
    is_open: bool,
    postgres: PostgresServer,
    database_with_slot: str,
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    postgres.query("INSERT INTO stock VALUES (1)", database=database_with_slot)
    settings = settings_of(postgres, database_with_slot)

    def night(run_id: str) -> Pipeline:
        names: dict[str, Any] = {"source_conn_id": "shop", "standing_slot": STANDING, "refresh": "auto"}
        return Pipeline(spark, settings, tmp_path.as_uri(), ["public.stock"], run_id=run_id, **names)

    first = night("20251231T000000Z-00000001")
    first.record()
    first.finish()
    first.release()
    found, context = preflight(tmp_path, NIGHT, as_of="")
    assert [bool(plan["base"]) for plan in found["plan"]] == [True]
    with background(postgres) as pool, postgres.connect(database=database_with_slot) as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE stock IN SHARE UPDATE EXCLUSIVE MODE")
        other.execute(statement)
        if not is_open:
            other.execute("COMMIT")
        recording = pool.submit(record, tmp_path, found, context)
        if is_open:
            wait_for(
                postgres, "wait_event_type = 'Lock' AND datname = 'DATABASE'".replace("DATABASE", database_with_slot)
            )
            other.execute("COMMIT")
        run = recording.result()
    assert "The run is planned again" in capfd.readouterr().out
    rows = sorted(postgres.query("SELECT * FROM stock", database=database_with_slot))
    postgres.query("INSERT INTO stock VALUES (2)", database=database_with_slot)
    second = night(run.run_id)
    second.finish()
    assert sorted(published(second.found["consolidate"]["published"]["public.stock"])[1]) == rows
    second.release()


@pytest.fixture
def mysql_shop(mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> str:
    mysql.query(f"CREATE TABLE {schema}.stock (id INT PRIMARY KEY, sku INT NOT NULL)")
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, stock INT)")
    fields = {"host": mysql.host, "port": mysql.port, "login": "root", "schema": schema}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_mysql", **fields}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    return schema


@pytest.mark.parametrize(
    ("statement", "stock"),
    [
        ("ALTER TABLE S.stock ADD note TEXT", (("id",), ["id", "sku", "note"])),
        ("ALTER TABLE S.stock DROP PRIMARY KEY, ADD PRIMARY KEY (sku)", (("sku",), ["id", "sku"])),
        ("RENAME TABLE S.stock TO S.old, S.orders TO S.stock, S.old TO S.orders", (("id",), ["id", "stock"])),
        ("DROP TABLE S.stock", None),
    ],
    ids=["column", "key", "swap", "drop"],
)
def test_a_mysql_table_is_copied_as_it_is_at_the_position(
    statement: str,
    stock: tuple[tuple[str, ...], list[str]] | None,
    mysql: MysqlServer,
    mysql_shop: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found, context = preflight(tmp_path, NIGHT, tables=[f"{mysql_shop}.*"], as_of="", standing_slot="", refresh="full")
    mysql.query(statement.replace("S.", f"{mysql_shop}."))
    run = record(tmp_path, found, context)
    # Definitions are read under the lock. Only a table that is missing then makes a new plan necessary.
    assert ("The run is planned again" in capfd.readouterr().out) == (stock is None)
    tables = {entry.table.name.name: entry.table for entry in run.manifest.tables}
    planned = {name: (table.key, [column.name for column in table.columns]) for name, table in tables.items()}
    assert planned.get("stock") == stock
    assert "orders" in planned


def test_a_mysql_table_that_can_no_longer_be_copied_is_refused_as_by_preflight(
    mysql: MysqlServer, mysql_shop: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"tables": [f"{mysql_shop}.*"], "as_of": "", "standing_slot": "", "refresh": "full"}
    found, context = preflight(tmp_path, NIGHT, **given)
    mysql.query(f"ALTER TABLE {mysql_shop}.stock ENGINE=MyISAM")
    with pytest.raises(AirflowFailException, match=r"\.stock: .*MyISAM") as refused:
        record(tmp_path, found, context)
    with pytest.raises(AirflowFailException) as before:
        preflight(tmp_path, NIGHT, **given)
    assert str(refused.value).partition("problem")[2] == str(before.value).partition("problem")[2]


def test_a_merged_table_that_is_left_out_is_no_shard_of_another_one(
    mysql: MysqlServer, mysql_shop: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {mysql_shop}.all_1 (id INT PRIMARY KEY)")
    left_out, shards = f"{mysql_shop}.all_together", [f"{mysql_shop}.orders", f"{mysql_shop}.stock"]
    # The pattern of the other merged table matches the name of the first one, which is no table of the source.
    merge = {left_out: shards, "shop.others": [f"{mysql_shop}.all_*"]}
    given: dict[str, Any] = {"as_of": "", "standing_slot": "", "refresh": "full", "merge": merge}
    found, context = preflight(tmp_path, NIGHT, tables=[f"{mysql_shop}.*"], on_table_error="skip", **given)
    assert [plan["table"] for plan in found["plan"]] == [f"{mysql_shop}.all_1"]
    assert set(found["skipped"]) == {left_out, *shards}
    why = found["skipped"][left_out]
    assert f"{mysql_shop}.stock: it has no column stock" in why
    assert found["skipped"][shards[0]] == f"it is a shard of {left_out}, which is left out: {why}"
    run = record(tmp_path, found, context)
    assert [str(entry.table.copy_name) for entry in run.manifest.tables] == ["shop.others"]
    assert run.manifest.skipped == found["skipped"]
