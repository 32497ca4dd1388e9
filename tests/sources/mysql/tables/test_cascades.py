"""Foreign keys whose changes the server does not log: copies of their tables are exact, or the run stops."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.errors import CascadeNotLogged, PreflightError, SchemaChanged
from airflow_provider_cdc.jobs.snapshot.read_part import DONE
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.seeds import seeds
from tests.servers import throw_away_mysql
from tests.sources.mysql.simulated_server import SimulatedServer

TABLES = """
CREATE TABLE up.root (id INT PRIMARY KEY, note TEXT);
CREATE TABLE up.parent (id INT PRIMARY KEY, code VARCHAR(9) UNIQUE, root INT, j JSON, note TEXT,
    FOREIGN KEY (root) REFERENCES up.root (id) ON DELETE CASCADE);
CREATE TABLE d.child (id INT PRIMARY KEY, parent INT, note TEXT,
    FOREIGN KEY (parent) REFERENCES up.parent (id) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE d.keyless (parent INT, note TEXT,
    FOREIGN KEY (parent) REFERENCES up.parent (id) ON DELETE SET NULL ON UPDATE CASCADE);
CREATE TABLE d.coded (id INT PRIMARY KEY, code VARCHAR(9),
    FOREIGN KEY (code) REFERENCES up.parent (code) ON DELETE CASCADE ON UPDATE SET NULL);
CREATE TABLE d.tree (id INT PRIMARY KEY, above INT, FOREIGN KEY (above) REFERENCES d.tree (id) ON DELETE CASCADE);
CREATE TABLE d.strict (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES up.root (id));
INSERT INTO up.root SELECT value, 'x' FROM JSON_TABLE('[1,2,3,4,5,6,7,8,9]', '$[*]' COLUMNS (value INT PATH '$')) AS t;
INSERT INTO up.parent
    SELECT id, CONCAT('c', id), IF(id < 7, id, NULL), '{"a": 1, "b": "long enough"}', 'x' FROM up.root;
INSERT INTO d.child SELECT 10 * p.id + r.id, p.id, 'x' FROM up.parent p, up.root r WHERE r.id < 4;
INSERT INTO d.keyless SELECT p.id, 'x' FROM up.parent p, up.root r WHERE r.id < 4;
INSERT INTO d.coded SELECT id, IF(id < 9, code, NULL) FROM up.parent;
INSERT INTO d.tree VALUES (1, NULL), (2, 1), (3, 2), (4, 2), (5, 1);
INSERT INTO d.strict VALUES (1, 8)
"""
COPIED = ("d.child", "d.keyless", "d.coded", "d.tree", "d.strict")


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    """A server that does not log what cascades do."""
    options = {"innodb_native_foreign_keys": "ON"}
    with throw_away_mysql(options) as started:
        yield started


@pytest.fixture(autouse=True)
def tables(server: MysqlServer) -> None:
    for schema in ("d", "up"):
        server.query(f"DROP DATABASE IF EXISTS {schema}")
    for schema in ("up", "d"):
        server.query(f"CREATE DATABASE {schema}")
    run(server, *filter(None, map(str.strip, TABLES.split(";"))))


def run(server: MysqlServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def rows(server: MysqlServer, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(server.query(f"SELECT * FROM {name}"))


def preflight(server: MysqlServer, consistency: str = "auto", user: str = "root") -> dict[str, TablePlan]:
    source = MysqlSource(ConnectionSettings("mysql", server.host, server.port, user))
    return {str(plan.table): plan for plan in source.preflight(["d.*"], TableOptions(consistency))}


def problems(server: MysqlServer, consistency: str = "auto", user: str = "root") -> str:
    with pytest.raises(PreflightError) as refused:
        preflight(server, consistency, user)
    return str(refused.value)


class TestPreflight:
    @pytest.mark.slow
    def test_only_tables_with_unlogged_cascades_are_locked_and_the_plan_says_why(self, server: MysqlServer) -> None:
        plans = preflight(server)
        assert {name: plan.consistency for name, plan in plans.items()} == {
            **dict.fromkeys(COPIED, "lock"),
            "d.strict": "watermark",
        }
        assert plans["d.child"].reason == (
            "the log lacks what its foreign keys change, so it is read at one position, fixed under a short lock; "
            "deleting rows of up.parent, up.root, or changing their keys, before it is read stops the run"
        )
        assert "rows of d.tree," in plans["d.tree"].reason

    def test_watermark_is_refused(self, server: MysqlServer) -> None:
        found = problems(server, "watermark")
        assert "changes of up.parent, up.root also change rows of this table" in found
        assert "d.strict" not in found

    def test_a_parent_that_this_user_cannot_read_whole_hides_its_own_parents(self, server: MysqlServer) -> None:
        run(
            server,
            "CREATE USER copier",
            "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO copier",
            "GRANT SELECT, LOCK TABLES ON d.* TO copier",
        )
        try:
            assert "up.parent: a change of up.parent can change rows of d.child" in problems(server, user="copier")
            run(server, "GRANT SELECT (id, code) ON up.parent TO copier")
            assert "GRANT SELECT ON `up`.`parent` TO" in problems(server, user="copier")
            run(server, "GRANT SELECT ON up.* TO copier")
            assert "GRANT LOCK TABLES ON `up`.*" in problems(server, user="copier")
            run(server, "GRANT LOCK TABLES ON up.* TO copier")
            assert preflight(server, user="copier")["d.child"].consistency == "lock"
        finally:
            run(server, "DROP USER copier")

    def test_a_parent_that_does_not_exist(self, server: MysqlServer) -> None:
        run(
            server,
            "SET foreign_key_checks = 0",
            "CREATE TABLE d.orphan (p INT PRIMARY KEY, FOREIGN KEY (p) REFERENCES up.nobody (id) ON DELETE CASCADE)",
        )
        assert "up.nobody: a change of up.nobody can change rows of d.orphan" in problems(server)

    def test_a_parent_whose_changes_cannot_be_read(self, server: MysqlServer) -> None:
        run(server, "ALTER TABLE up.root ADD COLUMN e ENUM('y', x'a6d9') CHARACTER SET gbk")
        found = problems(server)
        assert "up.root.e: a member of " in found
        assert "must read the changes of up.root" in found

    @pytest.mark.slow
    def test_a_parent_whose_schema_is_not_logged(self, server: MysqlServer) -> None:
        server.restart({"binlog_ignore_db": "up"})
        try:
            assert "schema up: the server does not log changes" in problems(server)
        finally:
            del server._options["binlog_ignore_db"]
            server.restart()


HARMLESS = (
    "UPDATE up.parent SET note = 'y', j = JSON_SET(j, '$.a', 2)",
    "INSERT INTO up.parent VALUES (20, 'c20', NULL, '1', 'new')",
    "UPDATE up.root SET note = 'y'",
    "DELETE FROM up.root WHERE id = 77",
    "UPDATE d.child SET note = 'y', parent = 3 WHERE id = 11",
    "DELETE FROM d.child WHERE id = 21",
    "INSERT INTO d.child VALUES (500, 20, 'new')",
    "DELETE FROM d.keyless LIMIT 2",
    "INSERT INTO d.keyless VALUES (20, 'new')",
    "UPDATE d.coded SET code = 'c20' WHERE id = 3",
    "INSERT INTO d.tree VALUES (6, 5)",
    "BEGIN",
    "DELETE FROM up.parent WHERE id = 2",
    "ROLLBACK",
    "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
    "UPDATE up.parent SET j = JSON_SET(j, '$.a', 3)",
)
REACHING = (
    "DELETE FROM up.parent WHERE id < 3",
    "UPDATE up.parent SET id = 30, code = 'c30' WHERE id = 3",
    "DELETE FROM up.root WHERE id = 4",
    "DELETE FROM d.tree WHERE id = 2",
    "UPDATE d.child SET note = 'z' WHERE id = 52",
    "DELETE FROM d.child WHERE parent = 5",
)


@pytest.mark.slow
@pytest.mark.parametrize("through_read", [False, True], ids=["lock let go", "lock through the read"])
def test_a_copy_is_exact_while_no_cascade_reaches_it_before_it_is_read(
    through_read: bool, server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(
        spark, settings_of(server), tmp_path.as_uri(), ["d.*", "up.parent"], lock=LockPolicy(through_read=through_read)
    )
    pipeline.record()
    expected = {name: rows(server, name) for name in (*COPIED, "up.root")}
    run(server, *HARMLESS)
    pipeline.snapshot()
    # What comes after the read is logged for the parents only, and does not count.
    run(server, *REACHING, HARMLESS[0])
    pipeline.extract_delta()
    uris = pipeline.consolidate()["published"]
    assert {name: Counter(published(uris[name])[1]) for name in COPIED} == {name: expected[name] for name in COPIED}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statements",
    [
        REACHING,
        pytest.param(
            ["XA START 'p'", "DELETE FROM up.parent WHERE id = 8", "XA END 'p'", "XA PREPARE 'p'", "XA COMMIT 'p'"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["XA START 'p'", "DELETE FROM up.parent WHERE id = 8", "XA END 'p'", "XA COMMIT 'p' ONE PHASE"],
            marks=pytest.mark.long,
        ),
    ],
    ids=["plain", "prepared", "in one phase"],
)
def test_cascades_after_the_read_do_not_count_while_other_tables_are_still_read(
    statements: Sequence[str], server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    """They are in the window, which ends with the last read of all."""
    run(server, "INSERT INTO d.strict SELECT 10 * p.id + r.id, 9 FROM up.parent p, up.root r", "ANALYZE TABLE d.strict")
    pipeline = Pipeline(
        spark, settings_of(server), tmp_path.as_uri(), ["d.child", "d.strict"], chunk_rows=30, chunk_pause=2
    )
    pipeline.record()
    expected = rows(server, "d.child")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipeline.snapshot)
        while not list(tmp_path.glob(f"_runs/*/{DONE}/*.json")):
            assert not reading.done()
            time.sleep(0.05)
        run(server, *statements)
        assert not reading.done()
        reading.result()
    pipeline.extract_delta()
    assert Counter(published(pipeline.consolidate()["published"]["d.child"])[1]) == expected


@pytest.mark.long
@pytest.mark.parametrize("version", ["8.0.36", "8.4.3"])
def test_a_whole_run_on_an_older_server(version: str, server: MysqlServer, spark: SparkSession, tmp_path: Path) -> None:
    with SimulatedServer(server, version) as older:
        settings = ConnectionSettings("mysql", older.host, older.port, "root", tls={"mode": "disabled"})
        pipeline = Pipeline(spark, settings, tmp_path.as_uri(), ["d.child", "d.tree"])
        pipeline.record()
        expected = rows(server, "d.child")
        run(server, *HARMLESS)
        assert Counter(published(pipeline.finish()["published"]["d.child"])[1]) == expected
        assert older.refused == []


REFUSED = {
    "a parent is deleted": (("d.child",), ["DELETE FROM up.parent WHERE id = 8"]),
    "a parent's parent is deleted": (("d.child",), ["DELETE FROM up.root WHERE id = 1"]),
    "a parent gets another key": (("d.child",), ["UPDATE up.parent SET id = 99 WHERE id = 8"]),
    "one row of many gets another key": (("d.coded",), ["UPDATE up.parent SET code = IF(id = 8, 'other', code)"]),
    "a key becomes null": (("d.coded",), ["UPDATE up.parent SET code = NULL WHERE id = 8"]),
    "a parent is replaced": (("d.child",), ["REPLACE INTO up.parent VALUES (8, 'c8', NULL, '1', 'r')"]),
    "a row is set null": (("d.keyless",), ["DELETE FROM up.parent WHERE id = 8"]),
    "a table is its own parent": (("d.tree",), ["DELETE FROM d.tree WHERE id = 2"]),
    "the parent is copied too": (("d.*", "up.*"), ["DELETE FROM up.parent WHERE id = 8"]),
    "in a compressed transaction": (
        ("d.child",),
        ["SET binlog_transaction_compression = ON", "BEGIN", "DELETE FROM up.parent WHERE id = 8", "COMMIT"],
    ),
    "with a json value in part": (
        ("d.child",),
        [
            "SET binlog_row_value_options = 'PARTIAL_JSON'",
            "UPDATE up.parent SET j = JSON_SET(j, '$.a', 3), id = 88 WHERE id = 8",
        ],
    ),
    "in a prepared transaction": (
        ("d.child",),
        ["XA START 'p'", "DELETE FROM up.parent WHERE id = 8", "XA END 'p'", "XA PREPARE 'p'", "XA COMMIT 'p'"],
    ),
    "in one phase": (
        ("d.child",),
        ["XA START 'p'", "DELETE FROM up.parent WHERE id = 8", "XA END 'p'", "XA COMMIT 'p' ONE PHASE"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False], ids=["when it is read", "at the end"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_cascade_before_the_read_stops_the_run(
    case: str, early: bool, server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    patterns, statements = REFUSED[case]
    # Under a lasting lock the log is not examined, since others would have to wait for it.
    lock = LockPolicy(through_read=not early)
    pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), patterns, lock=lock)
    pipeline.record()
    run(server, *statements)
    if not early:
        pipeline.snapshot()
    with pytest.raises(CascadeNotLogged, match=r"(up\.parent|up\.root|d\.tree) at "):
        pipeline.snapshot() if early else pipeline.extract_delta()


@pytest.mark.slow
def test_values_of_a_parent_need_no_arrow_type(server: MysqlServer, spark: SparkSession, tmp_path: Path) -> None:
    run(server, "ALTER TABLE up.root ADD COLUMN n DECIMAL(60, 0)")
    pipeline = Pipeline(spark, settings_of(server), (tmp_path / "1").as_uri(), ["d.child"])
    pipeline.record()
    expected = rows(server, "d.child")
    run(server, "UPDATE up.root SET n = REPEAT('9', 60)")
    assert Counter(published(pipeline.finish()["published"]["d.child"])[1]) == expected
    pipeline = Pipeline(spark, settings_of(server), (tmp_path / "2").as_uri(), ["d.child"])
    pipeline.record()
    run(server, "DELETE FROM up.root WHERE id = 1")
    with pytest.raises(CascadeNotLogged):
        pipeline.snapshot()


@pytest.mark.slow
def test_a_transaction_that_was_prepared_before_the_position(
    server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    """From then on it holds a lock on the child, so nothing is read before it ends."""
    pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["d.coded"])
    plans = pipeline.source.preflight(["d.coded"])
    assert plans
    run(server, "XA START 'p'", "UPDATE up.parent SET code = 'new' WHERE id = 8", "XA END 'p'", "XA PREPARE 'p'")
    server.query("INSERT INTO up.root VALUES (50, 'after')")
    ended = threading.Timer(3, lambda: server.query("XA COMMIT 'p'"))
    ended.start()
    try:
        # The position is fixed under the lock of the child, too.
        pipeline.record()
    finally:
        ended.join()
    expected = rows(server, "d.coded")
    assert Counter(published(pipeline.finish()["published"]["d.coded"])[1]) == expected


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE up.parent ADD FOREIGN KEY (id) REFERENCES up.root (id) ON UPDATE CASCADE",),
        ("ALTER TABLE up.parent ADD COLUMN later INT",),
        ("SET foreign_key_checks = 0", "RENAME TABLE up.root TO up.former", "CREATE TABLE up.root LIKE up.former"),
        ("SET foreign_key_checks = 0", "DROP TABLE up.root"),
        ("SET foreign_key_checks = 0", "TRUNCATE TABLE up.parent"),
        ("SET foreign_key_checks = 0", "DROP DATABASE up"),
    ],
    ids=["another foreign key", "another column", "renamed", "dropped", "truncated", "schema dropped"],
)
def test_the_definition_of_a_parent_stays(
    statements: Sequence[str], server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["d.child"], on_schema_change="fail")
    pipeline.record()
    run(server, *statements)
    with pytest.raises(SchemaChanged, match="up"):
        pipeline.finish()


def test_a_parent_that_is_renamed_unlogged_stops_the_run(server: MysqlServer) -> None:
    """Its foreign keys follow it, and the log of its changes has another name."""
    source = MysqlSource(settings_of(server))
    point = source.record_initial(source.preflight(["d.child"]), LockPolicy())
    reading = source.of_run(point.identity, point.position)
    reading.check_tables(point.tables)
    run(server, "SET sql_log_bin = 0", "RENAME TABLE up.parent TO up.elsewhere")
    with pytest.raises(SchemaChanged, match="no longer exists") as stopped:
        reading.check_tables(point.tables)
    assert stopped.value.where == "up.parent"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_writers_that_delete_parents_meanwhile(
    seed: int, server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Every parent has three children from its first moment on to its last: so it is at any position, or a row is
    wrong."""
    chance = random.Random(seed)
    run(
        server,
        "DELETE FROM d.strict",
        "DELETE FROM up.root",
        "DELETE FROM up.parent",
        "DELETE FROM d.child",
        "DELETE FROM d.keyless",
    )
    stop = threading.Event()

    def work(cursor: Any, number: int) -> None:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO up.parent VALUES (%s, %s, NULL, '1', 'w')", (number, f"w{number}"))
        three = [(3 * number + index, number) for index in range(3)]
        cursor.executemany("INSERT INTO d.child VALUES (%s, %s, 'w')", three)
        cursor.execute("COMMIT")
        cursor.execute("UPDATE d.child SET note = %s ORDER BY RAND() LIMIT 3", (str(number),))
        cursor.execute("UPDATE up.parent SET note = %s ORDER BY RAND() LIMIT 3", (str(number),))
        if number % 40 == 0 and seed % 3:
            cursor.execute("DELETE FROM up.parent ORDER BY RAND() LIMIT 2")
            time.sleep(chance.random() * (seed % 3))

    def write() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                if stop.is_set():
                    return
                try:
                    work(cursor, number)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in (1205, 1213):
                        raise
                    cursor.execute("ROLLBACK")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(1)
        pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["d.child", "up.parent"], chunk_rows=50)
        pipeline.record()
        with contextlib.suppress(CascadeNotLogged):
            uris = pipeline.finish()["published"]
            parents = {row[0] for row in published(uris["up.parent"])[1]}
            children = Counter(row[1] for row in published(uris["d.child"])[1])
            assert children == dict.fromkeys(parents, 3)
            return
    finally:
        stop.set()
        writer.join()
    assert seed % 3, "nothing was deleted, and yet the run stopped"
    assert not list(tmp_path.glob("d.*"))


@pytest.mark.slow
def test_a_past_position_is_refused_if_a_cascade_came_after_it(
    server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    past = server.query("SELECT @@gtid_executed")[0][0].replace("\n", "")
    expected = rows(server, "d.child")
    run(server, *HARMLESS)
    first = Pipeline(spark, settings_of(server), (tmp_path / "1").as_uri(), ["d.child"], as_of=past)
    first.record()
    assert Counter(published(first.finish()["published"]["d.child"])[1]) == expected
    server.query("DELETE FROM up.parent WHERE id = 8")
    second = Pipeline(spark, settings_of(server), (tmp_path / "2").as_uri(), ["d.child"], as_of=past)
    with pytest.raises(PreflightError, match=r"up\.parent at .*Through foreign keys, .*server does not log"):
        second.record()
