"""The log reader on a real server finds the changes that were made."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.errors import ConfigurationError, LogGone, PositionError, SourceReplaced, SourceUnavailable
from airflow_provider_cdc.sources.api.source import AT_START, ConnectionSettings, Start
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.log.segments import log_segments, open_segment
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import Connection, LogReading, executed, log_end, run, settings


def test_the_first_before_of_each_key(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(
        db,
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO a VALUES (1, 'one'), (2, 'two'), (3, NULL)",
    )
    reading = LogReading(mysql, schema, "a")
    run(
        db,
        "UPDATE a SET v = 'x' WHERE id = 1",
        "UPDATE a SET v = 'y' WHERE id = 1",
        "DELETE FROM a WHERE id = 2",
        "INSERT INTO a VALUES (2, 'again'), (4, 'new')",
        "DELETE FROM a WHERE id = 4",
        "UPDATE a SET id = 10 WHERE id = 3",
        "REPLACE INTO a VALUES (10, 'replaced')",
        "INSERT INTO a VALUES (1, 'z') ON DUPLICATE KEY UPDATE v = 'duplicate'",
    )
    assert reading.read().before["a"] == {
        key(1): (1, "one"),
        key(2): (2, "two"),
        key(3): (3, None),
        key(4): None,
        key(10): None,
    }


def test_a_key_that_moves_through_others(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 10), (2, 20), (3, 30)")
    reading = LogReading(mysql, schema, "a")
    run(db, "UPDATE a SET id = id + 1 ORDER BY id DESC")
    assert reading.read().before["a"] == {key(1): (1, 10), key(2): (2, 20), key(3): (3, 30), key(4): None}


def test_keys_of_several_columns_in_another_order_than_the_columns(
    mysql: MysqlServer, schema: str, db: Connection
) -> None:
    run(
        db,
        "CREATE TABLE a (pad TEXT, b VARCHAR(300), x INT, a INT, PRIMARY KEY (a, b))",
        "INSERT INTO a VALUES ('p', 'bb', 5, 1), ('q', 'bb', 6, 2)",
    )
    reading = LogReading(mysql, schema, "a")
    run(db, "UPDATE a SET x = 0, pad = REPEAT('z', 5000)", "UPDATE a SET b = 'BB' WHERE a = 2")
    assert reading.read().before["a"] == {
        key(1, "bb"): ("p", "bb", 5, 1),
        key(2, "bb"): ("q", "bb", 6, 2),
        key(2, "BB"): None,
    }


def test_keyless_rows_come_and_go(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE k (id INT, v VARCHAR(20))", "INSERT INTO k VALUES (1, 'a'), (1, 'a'), (2, NULL)")
    reading = LogReading(mysql, schema, "k")
    run(
        db,
        "INSERT INTO k VALUES (3, 'c'), (3, 'c'), (9, 'gone')",
        "DELETE FROM k WHERE id = 1 LIMIT 1",
        "UPDATE k SET v = 'b' WHERE id = 2",
        "DELETE FROM k WHERE id = 9",
    )
    assert reading.read().counts["k"] == Counter({(3, "c"): 2, (1, "a"): -1, (2, None): -1, (2, "b"): 1})


def test_keyless_changes_count_up_to_their_own_bound(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE k (id INT)", "CREATE TABLE a (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "k", "a")
    run(db, "INSERT INTO k VALUES (1)", "INSERT INTO a VALUES (1)")
    upper = executed(mysql)
    run(db, "INSERT INTO k VALUES (2)", "INSERT INTO a VALUES (2)")
    window = reading.read(upper=upper)
    assert window.counts["k"] == Counter({(1,): 1})
    assert window.before["a"] == {key(1): None, key(2): None}


def test_transactions_in_the_initial_position_do_not_count(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """Also with gaps: a later transaction may be in the initial position while an earlier one is not."""
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "a")
    source = "aaaaaaaa-0000-0000-0000-000000000001"
    for number in (7, 3, 5, 4):
        run(db, f"SET gtid_next = '{source}:{number}'", f"INSERT INTO a VALUES ({number})", "SET gtid_next = AUTOMATIC")
    reading.initial |= GtidSet.parse(f"{source}:3:5")
    assert reading.read().before["a"] == {key(7): None, key(4): None}


def test_ddl_in_the_initial_position_is_ignored_although_earlier_rows_have_another_shape(
    mysql: MysqlServer, schema: str, db: Connection
) -> None:
    run(
        db,
        "CREATE TABLE a (id INT PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "ALTER TABLE a ADD v VARCHAR(10), ADD w JSON",
        "SET binlog_row_image = MINIMAL",
        "UPDATE a SET v = 'x'",
        "SET binlog_row_image = FULL",
    )
    reading = LogReading(mysql, schema, "a")
    run(db, "UPDATE a SET v = 'y'")
    assert reading.read().before["a"] == {key(1): (1, "x", None)}


def test_tagged_gtids_are_told_apart_from_untagged_ones(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
    uuid = mysql.query("SELECT @@server_uuid")[0][0]
    tag = f"tag_{schema[-8:]}"
    reading = LogReading(mysql, schema, "a")
    for number in range(1, 5):
        run(db, f"SET gtid_next = 'AUTOMATIC:{tag}'", f"INSERT INTO a VALUES ({number})")
        run(db, "SET gtid_next = 'AUTOMATIC'", f"INSERT INTO a VALUES ({number + 10})")
    reading.initial |= GtidSet.parse(f"{uuid}:{tag}:2-3")
    assert reading.read().before["a"] == {key(n): None for n in (1, 4, 11, 12, 13, 14)}


@pytest.mark.parametrize("rows", [1, 3, 9_000])
def test_compressed_transactions(mysql: MysqlServer, schema: str, db: Connection, rows: int) -> None:
    run(
        db,
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(100))",
        "CREATE TABLE k (id INT, v VARCHAR(100))",
        "SET binlog_transaction_compression = ON, cte_max_recursion_depth = 100000",
        "INSERT INTO a WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000) "
        f"SELECT i, REPEAT('ab', i % 50) FROM n WHERE i <= {rows}",
        "ALTER TABLE k ADD u INT",
    )
    reading = LogReading(mysql, schema, "a", "k")
    run(
        db,
        "BEGIN",
        "UPDATE a SET v = 'changed'",
        "INSERT INTO k SELECT id, v, 1 FROM a",
        "DELETE FROM a WHERE id = 1",
        "COMMIT",
        "SET binlog_transaction_compression = OFF",
        "UPDATE a SET v = 'plain' WHERE id = 2",
    )
    window = reading.read()
    assert window.before["a"] == {key(i): (i, "ab" * (i % 50)) for i in range(1, rows + 1)}
    assert window.counts["k"] == Counter({(i, "changed", 1): 1 for i in range(1, rows + 1)})


def test_a_file_that_begins_with_a_transaction_larger_than_a_packet(
    mysql: MysqlServer, schema: str, db: Connection
) -> None:
    """The server shows no such event, and answers as for a file that is not there."""
    run(db, "CREATE TABLE a (id INT PRIMARY KEY, v BLOB)")
    reading = LogReading(mysql, schema, "a")
    packet = mysql.query("SELECT @@global.max_allowed_packet")[0][0]
    run(db, "SET GLOBAL max_allowed_packet = 1024", "FLUSH BINARY LOGS", "SET binlog_transaction_compression = ON")
    try:
        run(db, f"INSERT INTO a VALUES {', '.join(f'({number}, RANDOM_BYTES(1000))' for number in range(30))}")
        assert reading.read().before["a"] == {key(number): None for number in range(30)}
    finally:
        run(db, f"SET GLOBAL max_allowed_packet = {packet}")


@pytest.mark.slow
def test_a_row_larger_than_a_packet(mysql: MysqlServer, schema: str) -> None:
    size = 17 * 2**20
    mysql.query("SET GLOBAL max_allowed_packet = 134217728")
    with mysql.connect(database=schema, max_allowed_packet=2**27) as connection:
        run(
            connection,
            "CREATE TABLE a (id INT PRIMARY KEY, v LONGBLOB)",
            f"INSERT INTO a VALUES (1, REPEAT('x', {size}))",
        )
        reading = LogReading(mysql, schema, "a")
        run(
            connection,
            "UPDATE a SET v = 'small'",
            f"UPDATE a SET v = REPEAT('y', {2**25 - 50})",
            "INSERT INTO a VALUES (2, '')",
        )
    before = reading.read().before["a"]
    assert before == {key(1): (1, b"x" * size), key(2): None}


def test_partial_json_updates_have_a_whole_before(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(
        db,
        "CREATE TABLE a (id INT PRIMARY KEY, d JSON, e JSON, v VARCHAR(20))",
        """INSERT INTO a VALUES (1, CONCAT('{"a": 1, "z": "', REPEAT('z', 300), '"}'), '[1]', 'x')""",
        """INSERT INTO a VALUES (2, NULL, '{"b": 2}', 'y')""",
        "SET binlog_row_value_options = PARTIAL_JSON",
    )
    reading = LogReading(mysql, schema, "a")
    run(
        db,
        "UPDATE a SET d = JSON_SET(d, '$.a', 2), v = 'q'",
        "UPDATE a SET e = JSON_SET(e, '$.b', 3)",
        "UPDATE a SET v = 'only'",
        "UPDATE a SET id = 5, d = JSON_REMOVE(d, '$.z') WHERE id = 1",
    )
    before = reading.read().before["a"]
    assert set(before) == {key(1), key(2), key(5)}
    assert before[key(2)] == (2, None, '{"b": 2}', "y")
    first = before[key(1)]
    assert first is not None
    assert (first[0], first[2:]) == (1, ("[1]", "x"))
    assert before[key(5)] is None


def test_savepoints_and_rollbacks(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "a")
    run(
        db,
        *("BEGIN", "INSERT INTO a VALUES (1)", "SAVEPOINT `s 1`", "INSERT INTO a VALUES (2)", "ROLLBACK TO `s 1`"),
        *("INSERT INTO a VALUES (3)", "SAVEPOINT t", "INSERT INTO a VALUES (4)", "RELEASE SAVEPOINT t", "COMMIT"),
        *("BEGIN", "INSERT INTO a VALUES (5)", "ROLLBACK"),
    )
    assert reading.read().before["a"] == {key(n): None for n in (1, 3, 4)}


def test_statements_that_leave_copied_tables_alone(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    reading = LogReading(mysql, schema, "a")
    user = f"u_{schema[-8:]}"
    run(
        db,
        "CREATE TABLE IF NOT EXISTS a (id INT PRIMARY KEY)",
        "CREATE TABLE b LIKE a",
        "CREATE TABLE c AS SELECT * FROM a",
        "ALTER TABLE b ADD v INT",
        "CREATE INDEX i ON b (v)",
        "DROP INDEX i ON b",
        "RENAME TABLE b TO b2",
        "TRUNCATE b2",
        "DROP TABLE b2, c",
        "CREATE TABLE c (id INT) /*!90500 COMMENT 'later' */",
        "/*!80400 ALTER TABLE c ADD v INT */",
        "DROP TABLE IF EXISTS never_was",
        "CREATE TEMPORARY TABLE a (x INT)",
        "INSERT INTO a VALUES (77)",
        "DROP TEMPORARY TABLE a",
        "CREATE VIEW v AS SELECT * FROM a",
        "CREATE OR REPLACE ALGORITHM = MERGE VIEW v AS SELECT id FROM a",
        "ALTER VIEW v AS SELECT 1",
        "DROP VIEW v",
        "CREATE TRIGGER t BEFORE INSERT ON a FOR EACH ROW SET @x = 1",
        "DROP TRIGGER t",
        "CREATE PROCEDURE p() DELETE FROM a",
        "CREATE FUNCTION f() RETURNS INT DETERMINISTIC RETURN 1",
        "DROP PROCEDURE p",
        "DROP FUNCTION f",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY STARTS '2038-01-01' DO DELETE FROM a",
        "ALTER EVENT e DISABLE",
        "DROP EVENT e",
        f"CREATE USER {user} IDENTIFIED BY 'a'",
        f"GRANT SELECT ON *.* TO {user}",
        f"REVOKE SELECT ON *.* FROM {user}",
        f"SET PASSWORD FOR {user} = 'b'",
        f"RENAME USER {user} TO {user}x",
        f"DROP USER {user}x",
        "ANALYZE TABLE a",
        "ANALYZE TABLE a UPDATE HISTOGRAM ON id",
        "OPTIMIZE TABLE a",
        "FLUSH TABLES",
        "FLUSH PRIVILEGES",
        f"CREATE DATABASE {schema}_2",
        f"ALTER DATABASE {schema}_2 CHARACTER SET latin1",
        f"DROP DATABASE {schema}_2",
        "INSERT INTO a VALUES (2)",
    )
    assert reading.read().before["a"] == {key(2): None}


def test_rows_of_other_engines_and_tables_are_passed_over(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(
        db,
        "CREATE TABLE a (id INT PRIMARY KEY)",
        "CREATE TABLE m (id INT) ENGINE = MyISAM",
        "CREATE TABLE g (p GEOMETRY, v VECTOR(3), b BIT(9), y YEAR)",
    )
    reading = LogReading(mysql, schema, "a")
    run(
        db,
        "INSERT INTO m VALUES (1)",
        "INSERT INTO g VALUES (POINT(1, 2), TO_VECTOR('[1,2,3]'), 5, 2024)",
        "BEGIN",
        "INSERT INTO g VALUES (NULL, NULL, NULL, NULL)",
        "INSERT INTO a VALUES (1)",
        "COMMIT",
    )
    window = reading.read()
    assert window.before == {"a": {key(1): None}}
    assert window.images == 1


@pytest.mark.slow
def test_the_end_is_exact_although_writers_go_on(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, v INT)")
    reading = LogReading(mysql, schema, "a")
    over = threading.Event()

    def write() -> None:
        with mysql.connect(database=schema) as connection:
            while not over.is_set():
                run(connection, "INSERT INTO a (v) VALUES (1)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not mysql.query(f"SELECT COUNT(*) FROM {schema}.a")[0][0] > 20:
            time.sleep(0.01)
        end = log_end(mysql)
        with mysql.connect(database=schema) as connection:
            run(connection, "INSERT INTO a VALUES (1000000, 1)")
        for _ in range(3):
            first = reading.read(end)
            assert key(1_000_000) not in first.before["a"]
            assert first.before == reading.read(end).before
    finally:
        over.set()
        writer.join()
    assert key(1_000_000) in reading.read().before["a"]


def test_a_window_without_changes(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    window = LogReading(mysql, schema, "a").read()
    assert window.before == {}
    assert window.summaries[0].transactions == 0


@pytest.mark.slow
def test_more_keys_than_the_first_memory_holds(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(
        db,
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(200))",
        "CREATE TABLE k (id INT)",
        "SET cte_max_recursion_depth = 100000",
        "INSERT INTO a WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) "
        "SELECT i, REPEAT('x', i % 200) FROM n",
    )
    reading = LogReading(mysql, schema, "a", "k")
    run(
        db,
        "INSERT INTO k SELECT id FROM a",
        "DELETE FROM k WHERE id > 5",
        "UPDATE a SET v = 'u'",
        "UPDATE a SET id = -id",
        "DELETE FROM a WHERE id < -9000",
    )
    window = reading.read()
    assert window.counts["k"] == Counter({(i,): 1 for i in range(1, 6)})
    assert window.before["a"] == {
        **{key(i): (i, "x" * (i % 200)) for i in range(1, 12_001)},
        **{key(-i): None for i in range(1, 12_001)},
    }


@pytest.mark.parametrize("mode", ["disabled", "required", "verify_ca"])
def test_with_and_without_tls(mysql: MysqlServer, schema: str, db: Connection, mode: str) -> None:
    tls = {"mode": mode} | ({"ca": str(mysql.directory / "data/ca.pem")} if mode == "verify_ca" else {})
    run(db, "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(200))")
    reading = LogReading(mysql, schema, "a", **tls)
    run(
        db,
        "SET cte_max_recursion_depth = 100000",
        "INSERT INTO a WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000) "
        "SELECT i, REPEAT('x', i % 200) FROM n",
    )
    assert reading.read().before["a"] == {key(i): None for i in range(1, 9001)}


def test_readers_do_not_throw_each_other_out(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """The server ends an older dump that has the same identity as a new one."""
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "a")
    run(db, "INSERT INTO a VALUES (1)")
    [segment] = reading.segments()
    tracked = reading.tracked()
    with (
        open_segment(reading.settings, segment, reading.initial, tracked) as first,
        open_segment(reading.settings, segment, reading.initial, tracked) as second,
    ):
        assert sum(batch.num_rows for batch in second) == 1
        assert sum(batch.num_rows for batch in first) == 1


def test_no_session_stays_behind(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "a")
    run(db, "INSERT INTO a VALUES (1)")
    reading.read()
    dumps = "SELECT COUNT(*) FROM performance_schema.processlist WHERE COMMAND LIKE 'Binlog Dump%'"
    # The server ends a session a moment after its connection.
    deadline = time.monotonic() + 60
    while mysql.query(dumps) != [(0,)]:
        assert time.monotonic() < deadline, "a dump is still running"
        time.sleep(0.05)


def test_a_privilege_is_missing(mysql: MysqlServer, schema: str) -> None:
    user = f"u_{schema[-8:]}"
    mysql.query(f"CREATE USER {user} IDENTIFIED BY 'secret word'")
    try:
        denied = ConnectionSettings("mysql", mysql.host, mysql.port, user, "secret word")
        end = log_end(mysql)
        with pytest.raises(ConfigurationError) as raised:
            log_segments(denied, executed(mysql), end)
        assert "secret word" not in str(raised.value)
        segment = LogSegment(0, end.file, 4, end.position)
        with pytest.raises(ConfigurationError), open_segment(denied, segment, GtidSet(), []) as reader:
            list(reader)
    finally:
        mysql.query(f"DROP USER {user}")


def test_a_file_that_is_not_there(mysql: MysqlServer) -> None:
    with (
        pytest.raises(LogGone, match="no_such"),
        open_segment(settings(mysql), LogSegment(0, "no_such.000001", 4, None), GtidSet(), []) as reader,
    ):
        list(reader)


@pytest.mark.parametrize("end", ["no_such.000009:4", "{file}:99999999999"])
def test_a_log_that_no_longer_reaches_to_the_bound(mysql: MysqlServer, end: str) -> None:
    file = log_end(mysql).file
    with pytest.raises((LogGone, SourceReplaced)):
        log_segments(settings(mysql), executed(mysql), LogPlace.parse(end.format(file=file)))


@pytest.mark.parametrize("end", ["", "binlog.000001", "binlog.000001:", "binlog.000001:x", ":4"])
def test_a_bound_that_is_no_place_in_the_log(mysql: MysqlServer, end: str) -> None:
    source = MysqlSource(settings(mysql))
    with pytest.raises(PositionError):
        source.segments(Start(GtidSet(), Facts({})), AT_START, LogEnd(end))


def test_an_end_that_is_never_reached(mysql: MysqlServer, schema: str) -> None:
    """The server may have written more than it sends, for it sends only what is flushed. A retry will get it."""
    end = log_end(mysql)
    segment = LogSegment(0, end.file, 4, end.position + 1000)
    with (
        pytest.raises(SourceUnavailable),
        open_segment(settings(mysql), segment, executed(mysql), []) as reader,
    ):
        list(reader)


@pytest.mark.slow
def test_purged_files_and_files_without_checksums(mysql_factory: Any) -> None:
    server = mysql_factory({"binlog_checksum": "NONE"})
    server.query("CREATE DATABASE s")
    with server.connect(database="s") as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY)")
        reading = LogReading(server, "s", "a")
        run(connection, "INSERT INTO a VALUES (1)", "SET GLOBAL binlog_checksum = CRC32", "INSERT INTO a VALUES (2)")
        run(
            connection,
            "SET GLOBAL binlog_checksum = NONE",
            "SET binlog_transaction_compression = ON",
            "INSERT INTO a VALUES (3)",
        )
        assert len(reading.segments()) == 3
        assert reading.read().before["a"] == {key(n): None for n in (1, 2, 3)}

        # A restart ends a file with STOP instead of ROTATE.
        server.restart()
    with server.connect(database="s") as connection:
        run(connection, "INSERT INTO a VALUES (4)")
        assert reading.read().before["a"] == {key(n): None for n in (1, 2, 3, 4)}

        server.purge_log()
        with pytest.raises(LogGone, match="purged"):
            reading.segments()
