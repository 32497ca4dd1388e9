"""Nightly runs on a real server, each compared bit for bit with a full copy at the same position."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CopyMismatch, DecodeError, LogGone, PreflightError, SchemaChanged
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.conftest import MysqlFactory
from tests.consistency.comparing import assert_same_copies, contents
from tests.sources.mysql.values import CASES, create_table, rows_of


class Nights:
    """Copies of one schema in one lake, one after the other."""

    def __init__(self, mysql: MysqlServer, spark: SparkSession, schema: str, folder: Path) -> None:
        self.mysql = mysql
        self.spark = spark
        self.schema = schema
        self.folder = folder
        self.number = 0

    def do(self, *statements: str) -> None:
        with self.mysql.connect(database=self.schema) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def night(self, refresh: str = "changes", **more: Any) -> Pipeline:
        """The next run; it is not begun yet."""
        self.number += 1
        run_id = f"202601{self.number:02}T000000Z-00000000"
        settings, lake = settings_of(self.mysql), (self.folder / "lake").as_uri()
        return Pipeline(self.spark, settings, lake, [f"{self.schema}.*"], run_id=run_id, refresh=refresh, **more)

    def rolled(self) -> None:
        """Roll forward, and compare with a full copy."""
        run = self.night()
        run.record()
        assert {bool(plan.base) for plan in run.plans} == {True}
        tables = run.finish()["published"]
        assert run.found["snapshot"]["rows"] == 0
        anew = Pipeline(
            self.spark, settings_of(self.mysql), (self.folder / f"anew-{self.number}").as_uri(), [f"{self.schema}.*"]
        )
        anew.record()
        wanted = anew.finish()["published"]
        assert_same_copies(tables, wanted, f"night {self.number}")


@pytest.fixture
def nights(mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path) -> Nights:
    return Nights(mysql, spark, schema, tmp_path)


@pytest.mark.slow
def test_every_type_at_its_extremes(nights: Nights) -> None:
    groups = {f"t{start}": CASES[start : start + 45] for start in range(0, len(CASES), 45)}
    for name, cases in groups.items():
        rows = rows_of(cases)
        nights.do(
            # An ENUM's 0 is an error otherwise.
            "SET sql_mode = ''",
            create_table(name, cases),
            *(f"INSERT INTO {name} VALUES ({number}, {', '.join(row)})" for number, row in enumerate(rows)),
            # One without a key, with the same rows.
            f"CREATE TABLE {name}_keyless LIKE {name}",
            f"ALTER TABLE {name}_keyless DROP PRIMARY KEY",
            f"INSERT INTO {name}_keyless SELECT * FROM {name}",
        )
    run = nights.night("full")
    run.record()
    run.finish()
    for name in groups:
        for table in (name, f"{name}_keyless"):
            # What was is taken out by its before image; what is comes from its after image.
            nights.do(
                "SET sql_mode = ''",
                f"UPDATE {table} SET id = id + 100 WHERE id % 2",
                f"UPDATE {table} SET c0 = c0 WHERE id = 2",
                f"INSERT INTO {table} SELECT * FROM (SELECT * FROM {name} WHERE id = 0) s"
                if table != name
                else f"DELETE FROM {table} WHERE id = 0",
            )
    nights.rolled()
    nights.do(*(f"DELETE FROM {name} WHERE id > 100" for name in groups))
    nights.rolled()


@pytest.mark.slow
def test_a_table_that_gets_a_partition_and_an_index_every_night(nights: Nights) -> None:
    nights.do(
        "CREATE TABLE daily (id BIGINT, day DATE, v INT, PRIMARY KEY (id, day)) PARTITION BY RANGE COLUMNS (day) "
        "(PARTITION p1 VALUES LESS THAN ('2026-01-02'))",
        "CREATE TABLE plain (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
        "INSERT INTO daily VALUES (1, '2026-01-01', 1), (2, '2026-01-01', 2)",
        "INSERT INTO plain VALUES (1, 1), (2, 2)",
    )
    run = nights.night("full")
    run.record()
    run.finish()
    for day, altered in (
        (2, "ALTER TABLE daily REORGANIZE PARTITION p1 INTO (PARTITION p0 VALUES LESS THAN ('2026-01-02'))"),
        (3, "ALTER TABLE daily REBUILD PARTITION ALL"),
    ):
        nights.do(
            f"ALTER TABLE daily ADD PARTITION (PARTITION d{day} VALUES LESS THAN ('2026-01-{day + 1:02}'))",
            f"INSERT INTO daily VALUES ({day}, '2026-01-{day:02}', 7), ({day + 10}, '2026-01-{day:02}', 8)",
            altered,
            "UPDATE daily SET v = v + 1 WHERE id = 1",
            f"ALTER TABLE plain ADD INDEX a{day} (v), ADD INDEX b{day} (v, id), AUTO_INCREMENT = {day}00",
            "ALTER TABLE plain ENGINE = InnoDB",
            "INSERT INTO plain (v) VALUES (5)",
        )
        nights.rolled()


@pytest.mark.slow
def test_a_transaction_that_is_prepared_on_one_night_and_committed_on_the_next(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, left_over INT)", "CREATE TABLE notes (text VARCHAR(9))")
    nights.do("INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30)", "INSERT INTO notes VALUES ('a'), ('a'), ('b')")
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do(
        "SET xa_detach_on_prepare = ON",
        "XA START 'long'",
        "UPDATE stock SET left_over = 0 WHERE id = 2",
        "DELETE FROM stock WHERE id = 3",
        "XA END 'long'",
        "XA PREPARE 'long'",
        "UPDATE stock SET left_over = 11 WHERE id = 1",
        "FLUSH BINARY LOGS",
    )
    try:
        nights.rolled()
    finally:
        nights.do("XA COMMIT 'long'")
    nights.do("UPDATE stock SET left_over = left_over + 1", "INSERT INTO notes VALUES ('c')")
    nights.rolled()


@pytest.mark.slow
def test_statements_between_preflight_and_the_position_stop_the_run(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, left_over INT)", "INSERT INTO stock VALUES (1, 10)")
    run = nights.night("full")
    run.record()
    run.finish()
    run = nights.night("auto", on_schema_change="fail")
    plans = run.preflight()
    assert plans[0].base
    run.preflight = lambda: plans  # type: ignore[method-assign]
    nights.do("SET sql_log_bin = 0", "TRUNCATE stock", "INSERT INTO stock VALUES (1, 10)")
    with pytest.raises(SchemaChanged, match="no statement in the log"):
        run.record()
    nights.do("TRUNCATE stock")
    run.record()
    run.snapshot()
    with pytest.raises(SchemaChanged, match="TRUNCATE"):
        run.extract_delta()
    nights.do("INSERT INTO stock VALUES (5, 50)")
    run = nights.night("auto")
    run.record()
    assert "read in full: since the copy: TRUNCATE TABLE" in run.plans[0].reason
    assert run.finish()["rows"] == {f"{nights.schema}.stock": 1}
    nights.do("UPDATE stock SET left_over = 1")
    nights.rolled()


@pytest.mark.long
def test_anonymous_transactions_between_preflight_and_the_position_stop_the_run(
    mysql_factory: MysqlFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """The heads of the files after them name the same GTIDs as those of the files before them."""
    server = mysql_factory({})
    server.query("CREATE DATABASE shop")
    nights = Nights(server, spark, "shop", tmp_path)
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, left_over INT)", "INSERT INTO stock VALUES (1, 10), (2, 20)")
    run = nights.night("full")
    run.record()
    run.finish()
    run = nights.night("auto")
    plans = run.preflight()
    assert plans[0].base
    nights.do(
        "SET GLOBAL gtid_mode = ON_PERMISSIVE",
        "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
        "UPDATE stock SET left_over = 5 WHERE id = 1",
        "SET GLOBAL gtid_mode = ON_PERMISSIVE",
        "SET GLOBAL gtid_mode = ON",
    )
    run.preflight = lambda: plans  # type: ignore[method-assign]
    run.record()
    run.snapshot()
    with pytest.raises(LogGone, match="anonymous"):
        run.extract_delta()
    run = nights.night("auto")
    run.record()
    assert "read in full" in run.plans[0].reason
    run.finish()
    nights.do("UPDATE stock SET left_over = 1")
    nights.rolled()
    server.query("FLUSH BINARY LOGS")
    run = nights.night("auto")
    run.record()
    assert run.plans[0].base
    run.snapshot()
    server.purge_log()
    with pytest.raises(LogGone) as purged:
        run.extract_delta()
    assert "trigger a new run" in purged.value.hint, "the run keeps its plan, so no task of it can be cleared"


@pytest.mark.slow
def test_a_change_behind_the_log_stops_the_run(nights: Nights) -> None:
    """Also over a schema change: the row of the copy and the old row in the log become rows of the present table."""
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, left_over INT)", "INSERT INTO stock VALUES (1, 10), (2, 20)")
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do("SET sql_log_bin = 0", "UPDATE stock SET left_over = 5 WHERE id = 1", "SET sql_log_bin = 1")
    nights.do("UPDATE stock SET left_over = 6 WHERE id = 1")
    for ddl in ("", "ALTER TABLE stock RENAME COLUMN left_over TO rest, ADD n INT DEFAULT 7"):
        nights.do(*filter(None, [ddl]))
        run = nights.night()
        run.record()
        assert ("RENAME COLUMN left_over" in run.plans[0].reason) == bool(ddl)
        run.snapshot()
        run.extract_delta()
        with pytest.raises(CopyMismatch, match="differs from the old row"):
            run.consolidate()


@pytest.mark.slow
def test_rows_that_a_session_logged_in_part_are_read_in_full(nights: Nights) -> None:
    nights.do(*(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, doc JSON)" for name in ("a", "b", "c", "d")))
    nights.do(*(f"INSERT INTO {name} VALUES (1, 1, '{{\"n\": 1}}'), (2, 2, '{{}}')" for name in ("a", "b", "c", "d")))
    nights.do("CREATE TABLE keyless (v INT, w INT)", "INSERT INTO keyless VALUES (1, 1)")
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do("SET binlog_row_image = MINIMAL", "UPDATE a SET v = 5", "DELETE FROM a WHERE id = 2")
    nights.do("SET binlog_row_image = MINIMAL", "UPDATE keyless SET v = 5")
    nights.do("SET binlog_row_value_options = PARTIAL_JSON", "UPDATE b SET doc = JSON_SET(doc, '$.n', 2)")
    nights.do("SET binlog_row_image = MINIMAL", "SET binlog_transaction_compression = ON", "UPDATE c SET v = 5")
    nights.do("UPDATE d SET v = 5")
    run = nights.night("auto")
    run.record()
    rolled = {plan.table.name: bool(plan.base) for plan in run.plans}
    assert rolled == {"a": False, "b": False, "c": False, "d": True, "keyless": False}
    partly = "read in full: since the copy: a session with binlog_row_value_options=PARTIAL_JSON logged an update"
    whys = dict.fromkeys(("a", "c", "keyless"), "read in full: since the copy: the row images lack") | {"b": partly}
    assert {plan.table.name for plan in run.plans if not plan.base} == set(whys)
    assert all(whys[plan.table.name] in plan.reason for plan in run.plans if not plan.base)
    run.finish()
    nights.do("UPDATE a SET v = 6", "UPDATE keyless SET v = 6")
    nights.rolled()


@pytest.mark.slow
def test_a_table_that_cannot_be_copied_is_left_out_also_if_no_other_is_rolled_forward(nights: Nights) -> None:
    nights.do("CREATE TABLE a (id DATE PRIMARY KEY, v INT)", "INSERT INTO a VALUES ('2020-01-01', 1)")
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do("CREATE TABLE b (id INT PRIMARY KEY, v INT)", "INSERT INTO b VALUES (1, 1)")
    nights.do("SET sql_mode = ''", "INSERT INTO a VALUES ('0000-00-00', 1)")
    run = nights.night("auto", on_table_error="skip")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, False]
    found = run.finish()
    assert found["rows"] == {f"{nights.schema}.b": 1}
    assert set(found["skipped"]) == {f"{nights.schema}.a"}


@pytest.mark.slow
@pytest.mark.parametrize("read_together", [False, True], indirect=True)
def test_a_table_that_is_left_out_where_a_transaction_is_prepared_does_not_stop_the_run(nights: Nights) -> None:
    nights.do("CREATE TABLE a (id DATE PRIMARY KEY, v INT)", "INSERT INTO a VALUES ('2020-01-01', 1)")
    nights.do("CREATE TABLE b (id INT PRIMARY KEY, v INT)", "INSERT INTO b VALUES (1, 1)")
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do("SET sql_mode = ''", "INSERT INTO a VALUES ('0000-00-00', 1)")
    prepared = f"'{nights.schema}'"
    ends = f"XA END {prepared}", f"XA PREPARE {prepared}"
    nights.do("SET xa_detach_on_prepare = ON", f"XA START {prepared}", "UPDATE b SET v = 2", *ends)
    nights.do("FLUSH BINARY LOGS", f"XA COMMIT {prepared}")
    run = nights.night("auto", on_table_error="skip")
    run.record()
    found = run.finish()
    assert set(found["skipped"]) == {f"{nights.schema}.a"}
    assert pq.read_table(Storage(found["published"][f"{nights.schema}.b"]).path())["v"].to_pylist() == [2]


@pytest.mark.slow
def test_tables_that_join_are_read_and_all_are_of_one_position(nights: Nights) -> None:
    nights.do("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do("CREATE TABLE b (id INT PRIMARY KEY, v INT)", "INSERT INTO b VALUES (1, 1)", "UPDATE a SET v = 3")
    run = nights.night("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, False]
    # After the position: what is read live goes back, and what is rolled forward ends before it.
    nights.do("UPDATE a SET v = 4", "UPDATE b SET v = 4", "INSERT INTO b VALUES (2, 2)", "DELETE FROM a WHERE id = 1")
    tables = run.finish()["published"]
    found = {name.rpartition(".")[2]: pq.read_table(Storage(uri).path()) for name, uri in tables.items()}
    assert {name: sorted(zip(*_values(rows), strict=True)) for name, rows in found.items()} == {
        "a": [(1, 3), (2, 3)],
        "b": [(1, 1)],
    }
    nights.rolled()


@pytest.mark.long
def test_nights_between_which_the_server_is_restarted(
    mysql_factory: MysqlFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """Once it is known to have changed nothing; after a second time, or a crash, tables are read in full."""
    server = mysql_factory({})
    server.query("CREATE DATABASE shop")
    nights = Nights(server, spark, "shop", tmp_path)
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, n INT)", "INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30)")
    nights.do("CREATE TABLE notes (text VARCHAR(9))", "INSERT INTO notes VALUES ('a'), ('a'), ('b')")
    run = nights.night("full")
    run.record()
    run.finish()
    for _ in range(2):
        nights.do("UPDATE stock SET n = n + 1 WHERE id < 3", "DELETE FROM notes LIMIT 1")
        server.restart()
        nights.do("INSERT INTO stock SELECT MAX(id) + 1, 0 FROM stock", "INSERT INTO notes VALUES ('c')")
        nights.rolled()
    for again in (server.restart, server.crash):
        nights.do("UPDATE stock SET n = n + 1 WHERE id > 1")
        server.restart()
        nights.do("UPDATE stock SET n = n + 1 WHERE id > 2")
        again()
        nights.do("UPDATE stock SET n = n + 1")
        with pytest.raises(PreflightError, match="cannot be rolled forward"):
            nights.night().preflight()
        run = nights.night("auto")
        run.record()
        assert not any(plan.base for plan in run.plans)
        assert all("read in full: " in plan.reason for plan in run.plans)
        run.finish()
        nights.do("DELETE FROM stock WHERE id = 2", "UPDATE stock SET id = 2 WHERE id = 3")
        nights.rolled()


def _values(rows: pa.Table) -> list[list[int]]:
    return [rows[name].to_pylist() for name in ("id", "v")]


@pytest.mark.long
def test_a_damaged_log_does_not_stop_night_after_night(
    mysql_factory: MysqlFactory, spark: SparkSession, tmp_path: Path
) -> None:
    mysql = mysql_factory({})
    mysql.query("CREATE DATABASE d")
    nights = Nights(mysql, spark, "d", tmp_path)
    nights.do("CREATE TABLE t (id INT PRIMARY KEY, v CHAR(20))", "INSERT INTO t VALUES (1, 'one')")
    run = nights.night("auto")
    run.record()
    run.finish()
    (name, *_), *_ = mysql.query("SHOW BINARY LOG STATUS")
    nights.do("UPDATE t SET v = 'changed'", "FLUSH BINARY LOGS")
    log = mysql.data / name
    log.write_bytes(log.read_bytes().replace(b"changed", b"cHanged", 1))

    # The survey of the log does not detect the change; reading the log does.
    run = nights.night("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True]
    run.snapshot()
    with pytest.raises(DecodeError, match="checksum"):
        run.extract_delta()
    with pytest.raises(PreflightError, match="checksum"):
        nights.night("changes").record()
    run = nights.night("auto")
    run.record()
    (plan,) = run.plans
    assert not plan.base
    assert "checksum" in plan.reason
    assert name in plan.reason
    assert len(contents(run.finish()["published"]["d.t"])) == 1
    nights.do("UPDATE t SET v = 'whole'")
    nights.rolled()


@pytest.mark.slow
def test_schema_changes_are_carried(nights: Nights) -> None:
    """On the last nights, no row of a table changes, and a table is altered whose copy was itself carried."""
    nights.do(
        "CREATE TABLE stock (id INT PRIMARY KEY, a INT, b VARCHAR(20), c ENUM('x', 'y'), d VARCHAR(20))",
        "INSERT INTO stock VALUES (1, 1, 'one', 'x', 'I'), (2, 2, NULL, 'y', 'II'), (3, 3, 'three', NULL, 'III')",
        "CREATE TABLE notes (text VARCHAR(9), n INT)",
        "INSERT INTO notes VALUES ('a', 1), ('a', 2), ('b', 3), (NULL, NULL)",
        "CREATE TABLE other (id INT PRIMARY KEY, a INT)",
        "INSERT INTO other VALUES (1, 1)",
        "CREATE TABLE nothing (id INT PRIMARY KEY)",
    )
    run = nights.night("full")
    run.record()
    run.finish()
    nights.do(
        "UPDATE stock SET a = 20 WHERE id = 2",
        "ALTER TABLE stock ADD n INT NOT NULL DEFAULT 7 AFTER id, RENAME COLUMN b TO e",
        "UPDATE stock SET a = 30 WHERE id = 3",
        "INSERT INTO stock VALUES (4, 8, 4, 'four', 'x', 'IV')",
        "UPDATE other SET a = 2",
        "ALTER TABLE stock DROP d",
        "INSERT INTO notes VALUES ('z', 9)",
        "DELETE FROM notes WHERE text = 'b'",
        "ALTER TABLE notes DROP n",
        "DELETE FROM notes WHERE text = 'z'",
        "DELETE FROM notes LIMIT 1",
        "ALTER TABLE stock ADD d VARCHAR(20)",
        "UPDATE stock SET d = 'new' WHERE id = 1",
        # The server rebuilds an empty table, so the log would not explain its identity.
        "INSERT INTO nothing VALUES (7)",
        "ALTER TABLE nothing ADD n INT",
    )
    nights.rolled()
    nights.do(
        "ALTER TABLE stock MODIFY a BIGINT, MODIFY c ENUM('x', 'y', 'z')", "ALTER TABLE notes ADD m INT DEFAULT 5"
    )
    nights.rolled()
    nights.do("INSERT INTO notes VALUES ('c', 5)", "UPDATE stock SET c = 'z'", "INSERT INTO nothing VALUES (1, 2)")
    nights.rolled()


@pytest.mark.long
def test_schema_changes_beside_prepared_transactions_and_past_positions(nights: Nights) -> None:
    """The oracle is the server's own rows at the position."""

    def stock(columns: str = "*") -> Counter[Any]:
        return Counter(nights.mysql.query(f"SELECT {columns} FROM {nights.schema}.stock"))

    def published(run: Pipeline) -> Counter[Any]:
        folder = Path(run.finish()["published"][f"{nights.schema}.stock"].removeprefix("file://"))
        return Counter(tuple(row.values()) for row in pq.read_table(folder).to_pylist())

    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, a INT)", "INSERT INTO stock VALUES (1, 1), (2, 2)")
    nights.do("CREATE TABLE other (id INT PRIMARY KEY, a INT)", "INSERT INTO other VALUES (1, 1), (2, 2)")
    run = nights.night("full")
    run.record()
    run.finish()
    for xid, table in (("p", "other"), ("q", "stock")):
        rows = f"UPDATE {table} SET a = 9 WHERE id = 1"
        nights.do("SET xa_detach_on_prepare = 1", f"XA START '{xid}'", rows, f"XA END '{xid}'", f"XA PREPARE '{xid}'")
    # A prepared transaction cannot lie on both sides of a schema change of its table.
    with pytest.raises(pymysql.MySQLError, match="Lock wait"):
        nights.do("SET lock_wait_timeout = 1", "ALTER TABLE stock ADD n INT DEFAULT 5")
    nights.do("XA COMMIT 'q'", "SET binlog_transaction_compression = ON", "UPDATE stock SET a = a + 1")
    nights.do("ALTER TABLE stock ADD n INT DEFAULT 5", "UPDATE stock SET n = 6 WHERE id = 2", "XA COMMIT 'p'")
    past, wanted = nights.mysql.query("SELECT @@global.gtid_executed")[0][0].replace("\n", ""), stock()
    nights.do("UPDATE stock SET n = 7", "INSERT INTO stock VALUES (3, 3, 3)")
    run = nights.night(as_of=past)
    run.record()
    assert published(run) == wanted
    # A schema change between preflight and the position stops the run, and one after the position does not matter.
    nights.do("ALTER TABLE stock ADD m INT DEFAULT 5", "UPDATE stock SET m = 1 WHERE id = 1")
    run = nights.night()
    plans = run.preflight()
    run.preflight = lambda: plans  # type: ignore[method-assign]
    nights.do("ALTER TABLE stock ADD o INT DEFAULT 5")
    with pytest.raises(SchemaChanged, match="after the task `preflight` ran"):
        run.record()
    run = nights.night()
    run.record()
    nights.do("ALTER TABLE stock ADD late INT DEFAULT 5")
    assert published(run) == stock("id, a, n, m, o")
    # A run that reads another table again carries the schema change to its later position.
    nights.do("ALTER TABLE stock DROP o", "CREATE TABLE fresh (id INT PRIMARY KEY)", "INSERT INTO fresh VALUES (1)")
    run = nights.night("auto")
    run.record()
    nights.do("ALTER TABLE fresh ADD n INT", "UPDATE stock SET a = 100", "INSERT INTO fresh VALUES (2, 2)")
    assert published(run) == stock()
    entries = Run.load(run.run).manifest.tables
    assert {entry.table.name.name: bool(entry.base) for entry in entries} == {
        "fresh": False,
        "other": True,
        "stock": True,
    }
