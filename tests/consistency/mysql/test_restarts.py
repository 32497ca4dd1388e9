"""Tables that are altered while a run works are read again. All tables are those of the moved position, row for row.

The oracle is MySQL itself: its own tools replay exactly the transactions of that position, the DDL included, on a
second server.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.jobs.restart import altered as altered_tables
from airflow_provider_cdc.jobs.restart import later_position
from airflow_provider_cdc.sources.planning.point import record_point
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.acting import DURING, act_during, spool_at_once
from tests.consistency.mysql import history
from tests.consistency.mysql.replayed import Replayed
from tests.consistency.writing import Writing
from tests.seeds import SOAK_SEED, some

Alter = tuple[str, ...]

ALTERS: dict[str, Alter] = {
    "truncate and swap": (
        "TRUNCATE TABLE integers",
        "CREATE TABLE names_new LIKE names",
        "INSERT INTO names_new SELECT * FROM names WHERE CHAR_LENGTH(name) % 2",
        "RENAME TABLE names TO names_old, names_new TO names",
    ),
    "columns that come and go": (
        "ALTER TABLE integers ADD COLUMN extra INT NOT NULL DEFAULT 7, ALGORITHM=INSTANT",
        "ALTER TABLE integers ALTER COLUMN extra SET DEFAULT 8",
        "ALTER TABLE moments ADD COLUMN gone DOUBLE DEFAULT 5",
        "ALTER TABLE moments DROP COLUMN gone",
        "ALTER TABLE keyless ADD COLUMN more CHAR(3) DEFAULT 'abc' FIRST",
    ),
    "types and keys": (
        "ALTER TABLE integers MODIFY big DECIMAL(30,0)",
        "ALTER TABLE pairs DROP PRIMARY KEY, ADD PRIMARY KEY (number, code)",
        "ALTER TABLE names MODIFY mood ENUM('über','calm','glad','new')",
    ),
    "partitions": (
        "ALTER TABLE parted DROP PARTITION p0",
        "ALTER TABLE blobs PARTITION BY KEY () PARTITIONS 3",
        "ALTER TABLE blobs TRUNCATE PARTITION p1",
    ),
    "dropped and made again": (
        "CREATE TABLE again LIKE blobs",
        "INSERT INTO again (token, flags) VALUES ('abcd', b'1')",
        "RENAME TABLE blobs TO gone, again TO blobs",
        "DROP TABLE gone",
    ),
    "there and back": (
        "ALTER TABLE parted MODIFY note LONGTEXT NULL",
        "ALTER TABLE parted MODIFY note MEDIUMTEXT NULL",
        "ALTER TABLE pairs MODIFY day DATETIME NULL, ALGORITHM=COPY",
        "ALTER TABLE pairs MODIFY day DATE NULL",
    ),
}


def _alter(server: MysqlServer, schema: str, statements: Alter) -> None:
    with server.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_require_primary_key = 0")
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.slow
@pytest.mark.parametrize("during", some(*DURING))
@pytest.mark.parametrize("name", some(*ALTERS, plain=2))
def test_altered_tables_are_those_of_the_moved_position(
    name: str,
    during: str,
    mysql: MysqlServer,
    mysql_oracle: MysqlServer,
    spark: SparkSession,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = SOAK_SEED or 1
    chance = random.Random(f"{seed}/{name}/{during}")
    if spools := list(ALTERS).index(name) % 2 == 1:
        spool_at_once(monkeypatch)
    replayed = Replayed(mysql, mysql_oracle, schema, seed, chance.choice([20, 200]))
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.*"], chunk_rows=chance.choice([15, 100]))

    with Writing(history.write(mysql.connect, schema), seed, 4) as writers:

        def act() -> None:
            writers.wait_for_more(20)
            _alter(mysql, schema, ALTERS[name])
            writers.wait_for_more(20)

        writers.wait_for_more(50)
        initial = run.record()
        writers.wait_for_more(30)
        if during == DURING[1]:
            _alter(mysql, schema, ("ALTER TABLE integers COMMENT 'x', ADD COLUMN first INT",))
        act_during(run, during, act, monkeypatch)
        run.snapshot()
        if during == DURING[2]:
            act()
            # Only the log shows what happened before the end of the reads.
        writers.wait_for_more(10)
        run.extract_delta()
    found = run.consolidate()
    manifest = Run.load(run.run).manifest
    assert found["position"] == manifest.initial_position
    replayed.check(found["published"], found["position"])
    if during != DURING[2]:
        assert found["position"] != initial, "the position did not move"
        kept = [entry for entry in manifest.tables if entry.basis]
        assert kept, "no table was kept"
        if spools and during == DURING[0]:
            # The log of a carried read is always that of the server.
            starts = {entry.start for entry in kept if entry.basis and entry.basis.table is None}
            assert starts, "no read was kept as it is"
            assert all(Run.load(run.run).pieces(start) for start in starts), "the pieces were not used"


@pytest.fixture
def two_tables(mysql: MysqlServer, schema: str) -> str:
    """A schema with two tables of a few rows."""
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        for table in ("orders", "visits"):
            cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(20) NOT NULL)")
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, 'first')", [(number,) for number in range(50)])
    return schema


def _rows(run: Pipeline, name: str) -> dict[int, Any]:
    columns, rows = published(run.found["consolidate"]["published"][name])
    return {row[columns.index("id")]: tuple(row[1:]) for row in rows}


@pytest.mark.slow
def test_a_requested_position_never_moves(
    mysql: MysqlServer, spark: SparkSession, two_tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The altered table is left out, or stops the run. Only if the DAG supplied the position, a run may give it up."""
    position = mysql.query("SELECT @@global.gtid_executed")[0][0].replace("\n", "")
    mysql.query(f"UPDATE {two_tables}.visits SET note = 'second' WHERE id < 9")

    def run_of(number: int, **options: Any) -> Pipeline:
        target, tables = (tmp_path / str(number)).as_uri(), [f"{two_tables}.*"]
        run = Pipeline(spark, settings_of(mysql), target, tables, as_of=position, **options)
        run.preflight()
        return run

    def altered(run: Pipeline, number: int) -> None:
        with monkeypatch.context() as patch:
            alter = (f"ALTER TABLE orders ADD c{number} INT DEFAULT {number}", "DELETE FROM visits WHERE id = 40")
            act_during(run, DURING[0], lambda: _alter(mysql, two_tables, alter), patch)
            run.finish()

    skips = run_of(1, on_table_error="skip")
    assert skips.lock_and_record() == position
    kept, stops = run_of(2, on_schema_change="give_up_past", on_table_error="fail"), run_of(3)
    kept.lock_and_record(may_miss_past=True)
    stops.lock_and_record()
    altered(skips, 1)
    assert list(skips.found["consolidate"]["skipped"]) == [f"{two_tables}.orders"]
    assert skips.found["consolidate"]["position"] == position
    assert _rows(skips, f"{two_tables}.visits") == dict.fromkeys(range(50), ("first",))
    with pytest.raises(SchemaChanged, match="orders"):
        altered(stops, 3)
    altered(kept, 2)
    assert Run.load(kept.run).manifest.missed_as_of == position
    assert _rows(kept, f"{two_tables}.orders") == dict.fromkeys(range(50), ("first", 1, 2))
    visits = {number: ("second" if number < 9 else "first",) for number in range(50) if number != 40}
    assert _rows(kept, f"{two_tables}.visits") == visits


@pytest.mark.slow
def test_the_new_position_contains_what_earlier_reads_saw(
    mysql: MysqlServer, spark: SparkSession, two_tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{two_tables}.*"])
    initial = run.record()
    # Without these writes, the old position would contain everything that the reads saw.
    _alter(mysql, two_tables, ("UPDATE visits SET note = 'seen'",))
    points = list[InitialPoint]()

    def late(*arguments: Any) -> InitialPoint:
        point = record_point(*arguments)
        points.append(point)
        # The server shows a transaction to readers before it counts it as executed.
        return replace(point, position=GtidSet.parse(initial)) if len(points) == 1 else point

    monkeypatch.setattr(later_position, "record_point", late)
    act_during(run, DURING[0], lambda: _alter(mysql, two_tables, ("TRUNCATE TABLE orders",)), monkeypatch)
    run.finish()
    assert len(points) == 2
    assert len(Run.load(run.run).manifest.restarts) == 1, "the old position was used"
    assert run.found["consolidate"]["position"] == str(points[1].position)
    assert _rows(run, f"{two_tables}.visits") == dict.fromkeys(range(50), ("seen",))
    assert _rows(run, f"{two_tables}.orders") == {}


@pytest.mark.slow
def test_earlier_reads_do_not_count_after_a_restart(
    mysql_factory: Callable[..., MysqlServer], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the run has moved as often as it may, because of DDL: no table is left out."""
    monkeypatch.setattr(altered_tables, "LIMIT", 1)
    server = mysql_factory({})
    server.query("CREATE DATABASE shop")
    _alter(server, "shop", ("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)"))
    _alter(server, "shop", ("INSERT INTO a VALUES (1), (2)", "INSERT INTO b VALUES (1), (2)"))
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["shop.*"])
    run.record()
    _alter(server, "shop", ("ALTER TABLE a ADD c INT", "DELETE FROM b WHERE id = 2"))
    act_during(run, DURING[1], server.restart, monkeypatch)
    run.snapshot()
    manifest = Run.load(run.run).manifest
    assert [list(restart.tables) for restart in manifest.restarts] == [["shop.a"], ["shop.b"]]
    assert all(entry.table.name.name == "a" for entry in manifest.tables if entry.basis)
    run.extract_delta()
    run.consolidate()
    assert _rows(run, "shop.b") == {1: ()}
    assert _rows(run, "shop.a") == {1: (None,), 2: (None,)}


@pytest.mark.slow
def test_a_slow_attempt_does_not_take_the_reads_from_the_next_step(
    mysql: MysqlServer, spark: SparkSession, two_tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was presumed dead sees DDL that came after another attempt had finished. The run goes on with the
    reads of that attempt, because a later step may already use them."""
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{two_tables}.*"])
    initial = run.record()

    def act() -> None:
        run.snapshot()
        _alter(mysql, two_tables, ("ALTER TABLE orders ADD c INT",))

    act_during(run, DURING[0], act, monkeypatch)
    run.finish()
    assert run.found["consolidate"]["position"] == initial
    assert _rows(run, f"{two_tables}.orders") == dict.fromkeys(range(50), ("first",))
