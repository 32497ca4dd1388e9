"""Statements from real logs: names in any character set and case, and statements that change no copied row."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError, ImageNotWhole, SchemaChanged, UnknownEvent
from airflow_provider_cdc.sources.mysql.log import events
from airflow_provider_cdc.sources.mysql.log.events import query
from airflow_provider_cdc.sources.mysql.log.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.log.statements.grammar import (
    CLIENT_CHARSETS,
    comment_starts,
    decode,
    spaces,
)
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, meaning
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames, alike
from airflow_provider_cdc.sources.mysql.server import log_protocol
from harness.mysql_binaries import find_mysql
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import Connection, LogReading, executed, log_end, run


@pytest.fixture
def db(mysql: MysqlServer, schema: str) -> Iterator[Connection]:
    with mysql.connect(database=schema) as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY, v INT, w INT, UNIQUE u (v))")
        run(connection, "INSERT INTO a VALUES (1, 10, 1), (2, 20, 1)")
        yield connection


def raw(connection: Connection, statement: bytes) -> None:
    """Send bytes as they are."""
    driver: Any = connection
    driver._execute_command(3, statement)
    driver._read_query_result()


@pytest.mark.slow
def test_spaces_and_comments_of_all_character_sets(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """In latin1, for one, a no-break space is a space: TRUNCATE TABLE a may be three words to the server."""
    names = "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS"
    refused = set()
    for (charset,) in mysql.query(names):
        try:
            run(db, f"SET NAMES {charset}")
        except pymysql.MySQLError:
            refused.add(charset)
            continue
        for byte in map(bytes, zip(range(0x80, 0x100), strict=True)):
            character = decode(byte, charset)
            assert sent(db, b"DO%s1" % byte) == (character in spaces(charset)), (charset, byte)
            assert sent(db, b"DO 1 --%s'" % byte) == (character in comment_starts(charset)), (charset, byte)
    charsets = {charset for (charset,) in mysql.query(names)}
    assert charsets - refused - {"binary"} == {*CLIENT_CHARSETS}


def event(text: bytes, collation: int) -> bytes:
    """The body of a QUERY event with a text in a character set."""
    status = b"\4" + 3 * collation.to_bytes(2, "little")
    return struct.pack("<IIBHH", 0, 0, 0, 0, len(status)) + status + b"\0" + text


@pytest.mark.parametrize("statement", [b"TRUNCATE TABLE\xa0a", b"ALTER TABLE \xa0a ADD x INT"])
def test_a_table_behind_a_space_of_latin1(statement: bytes, mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "SET NAMES latin1")
    reading = LogReading(mysql, schema, "a")
    raw(db, statement)
    with pytest.raises(CdcError):
        reading.read()


def sent(connection: Connection, statement: bytes) -> bool:
    try:
        raw(connection, statement)
    except pymysql.MySQLError:
        return False
    return True


@pytest.mark.parametrize(
    ("charset", "name", "statement"),
    [
        ("latin1", "t\u0081x", b"TRUNCATE `t\x81x`"),
        ("latin1", "größe", b"TRUNCATE gr\xf6\xdfe"),
        ("cp1251", "Ящик", b"DROP TABLE \xdf\xf9\xe8\xea"),
        ("greek", "t\u02bdx", b"TRUNCATE `t\xa1x`"),
        ("gbk", "誠", b"TRUNCATE `\xd5\x5c`"),
        ("sjis", "表", b"TRUNCATE `\x95\x5c`"),
        ("big5", "功", b"DROP TABLE `\xa5\x5c`"),
        ("utf8mb4", "größe", "TRUNCATE `größe`".encode()),
    ],
)
def test_names_in_the_clients_character_set(
    charset: str, name: str, statement: bytes, mysql: MysqlServer, schema: str
) -> None:
    with mysql.connect(database=schema, charset="utf8mb4") as connection:
        run(connection, f"CREATE TABLE `{name}` (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
        reading = LogReading(mysql, schema, name)
        run(connection, f"SET NAMES {charset}")
        # A backslash may be half of a character, and a backtick, too.
        raw(
            connection,
            b"ALTER TABLE other COMMENT '" + {"gbk": b"\xd5\x5c", "sjis": b"\x95\x5c"}.get(charset, b"") + b"'",
        )
        reading.read()
        raw(connection, statement)
    with pytest.raises((SchemaChanged, UnknownEvent)):
        reading.read()


def test_a_literal_that_is_not_text_stops_nothing(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE other (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "a")
    raw(db, b"CREATE PROCEDURE p() SELECT _binary'\x81\xff'")
    raw(db, b"/* \xff */ ALTER TABLE other COMMENT 'x'")
    reading.read()


VERSIONED = [
    "ALTER TABLE other COMMENT 'x' /*!{n} , COMMENT 'y' */",
    "/*!{n} ALTER TABLE other COMMENT 'z' */",
    "RENAME TABLE other TO others /*!{n} , a TO b */",
    # What is a comment within the other one depends on which of the two counts.
    "TRUNCATE /*!{n} /* x */ other -- */ a /*\n */",
    "ALTER TABLE /*!{n} other COMMENT '*/ a ADD x INT COMMENT ' */ -- '",
]


def test_versioned_comments_mean_what_they_meant_to_the_server(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """Anybody may write them, about any table; whether they counted shows in what the statements did."""
    version = events.format_description(event_bodies(mysql, 4)[0]).server_version
    names = TrackedNames([TableName(schema, "a")])
    run(db, "CREATE TABLE other (id INT)")
    changed = 0
    for number in (f"{version}", f"{version + 1}", f"{version + 1:06}", "80026/**/"):
        for statement in VERSIONED:
            before, start = state_of(db), log_end(mysql).position
            with contextlib.suppress(pymysql.MySQLError):
                # For a server that skips all of it, there is no statement.
                run(db, statement.format(n=number))
            found = [
                meaning(replace(query(body), server_version=version), names).effect
                for body in event_bodies(mysql, start, log_protocol.QUERY)
            ]
            is_changed = state_of(db) != before
            assert found in ([Effect.TOUCHES] if is_changed else [Effect.HARMLESS], []), (number, statement)
            changed += is_changed
            run(db, "DROP TABLE IF EXISTS others")
            if is_changed:
                run(db, "DROP TABLE IF EXISTS a, b", "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
            run(db, "CREATE TABLE IF NOT EXISTS other (id INT)")
    # RENAME where the comment counts; TRUNCATE and ALTER of the copied table where it does not.
    assert changed == 2 + 2 * 2


def event_bodies(server: MysqlServer, start: int, kind: int = log_protocol.FORMAT_DESCRIPTION) -> list[bytes]:
    """Of the log file that the server writes to, the bodies of events of one type, from a position on."""
    log = (server.data / log_end(server).file).read_bytes()
    found = []
    while start < len(log):
        length = int.from_bytes(log[start + log_protocol.LENGTH_AT :][:4], "little")
        if log[start + log_protocol.KIND_AT] == kind:
            found.append(log[start + log_protocol.HEADER_BYTES : start + length - log_protocol.CHECKSUM_BYTES])
        start += length
    return found


def state_of(db: Connection) -> Any:
    """The rows and the definition of the table ``a``."""
    with db.cursor() as cursor:
        try:
            cursor.execute("SELECT COUNT(*) FROM a")
            rows = cursor.fetchall()
            cursor.execute("SHOW CREATE TABLE a")
        except pymysql.MySQLError:
            return None
        return rows, cursor.fetchall()


@pytest.fixture
def folding() -> Iterator[MysqlServer]:
    """A server that ignores case, which can only be chosen when its data directory is created."""
    option = {"lower_case_table_names": "1"}
    with tempfile.TemporaryDirectory(prefix="cdc-mysql-") as directory:
        command = [*find_mysql().mysqld, "--initialize-insecure", f"--datadir={directory}/data", "--user=root"]
        command += [f"--log-error={directory}/init.log", "--lower_case_table_names=1", "--innodb_redo_log_capacity=8M"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        with MysqlServer.start(Path(directory), options=option) as server:
            yield server


@pytest.mark.long
def test_names_that_the_server_takes_for_the_same(folding: MysqlServer) -> None:
    server = folding
    server.query("CREATE DATABASE s")
    with server.connect(database="s", charset="utf8mb4") as connection:
        names = {"İstanbul": "İSTANBUL", "Größe": "GRÖßE", "ωmega": "ΩMEGA", "kelvin": "\u212aELVIN", "дом": "ДОМ"}
        run(connection, *(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)" for name in names))
        stored = [name for (name,) in server.query("SHOW TABLES FROM s")]
        assert len(stored) == len(names)
        assert "istanbul" in stored
        for written in names.values():
            reading = LogReading(server, "s", *stored)
            run(connection, f"TRUNCATE `{written}`")
            with pytest.raises(SchemaChanged):
                reading.read()


@pytest.mark.slow
def test_names_are_alike_wherever_the_server_takes_them_for_the_same(mysql: MysqlServer) -> None:
    folded = 0
    with mysql.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        for start in range(0, 0x10000, 0x1000):
            characters = [chr(code) for code in range(max(start, 1), start + 0x1000) if not 0xD800 <= code < 0xE000]
            if not characters:
                continue
            columns = ", ".join(f"LOWER(CONVERT(_utf16 x'{ord(one):04x}' USING utf8mb3))" for one in characters)
            cursor.execute(f"SELECT {columns}")
            (lower,) = cursor.fetchall()
            for one, other in zip(characters, lower, strict=True):
                assert alike(one, other), (one, other)
                folded += one != other
    assert folded > 500


def test_what_changes_no_row_stops_nothing(mysql: MysqlServer, schema: str, db: Connection) -> None:
    reading = LogReading(mysql, schema, "a")
    run(
        db,
        "UPDATE a SET w = 2 WHERE id = 1",
        "ALTER TABLE a ADD INDEX i (w, v DESC), ALGORITHM=INPLACE",
        "UPDATE a SET w = 3 WHERE id = 1",
        "CREATE UNIQUE INDEX j ON a (w, id)",
        "ALTER TABLE a RENAME INDEX j TO k",
        "ALTER TABLE a ALTER INDEX k INVISIBLE",
        "ALTER TABLE a ALTER COLUMN w SET DEFAULT 7",
        "ALTER TABLE a COMMENT 'x'",
        "UPDATE a SET v = 21 WHERE id = 2",
        "DROP INDEX u ON a",
        "ALTER TABLE a DROP INDEX i, LOCK=NONE",
        "OPTIMIZE TABLE a",
        "ANALYZE TABLE a",
        "INSERT INTO a (id) VALUES (3)",
        "DELETE FROM a WHERE id = 1",
    )
    assert reading.read().before["a"] == {key(1): (1, 10, 1), key(2): (2, 20, 1), key(3): None}


def test_the_index_that_is_the_key(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE b (id INT NOT NULL, UNIQUE `the key` (id), KEY other (id))")
    for statement in ("DROP INDEX `THE KEY` ON b", "ALTER TABLE b RENAME INDEX `the key` TO x"):
        reading = LogReading(mysql, schema, "b")
        run(db, statement)
        with pytest.raises(SchemaChanged):
            reading.read()
        run(db, "DROP TABLE b", "CREATE TABLE b (id INT NOT NULL, UNIQUE `the key` (id), KEY other (id))")


def test_a_key_that_was_made_after_the_initial_position(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """The schemas are read after it: an index that is there by then may not have been unique at the position."""
    run(
        db,
        "CREATE TABLE b (x INT NOT NULL, y INT NOT NULL, UNIQUE z (y))",
        "INSERT INTO b VALUES (1, 1), (1, 2)",
    )
    before = executed(mysql)
    run(db, "DELETE FROM b WHERE y = 2", "CREATE UNIQUE INDEX a ON b (x)")
    reading = LogReading(mysql, schema, "b")
    assert reading.tables[0].key == ("x",)
    reading.initial = before
    with pytest.raises(SchemaChanged):
        reading.read()


BY_A_COPY = {
    "ALTER TABLE c ADD INDEX i (n), ALGORITHM=COPY": "",
    "CREATE INDEX i ON c (n)": "old_alter_table = ON",
    "ALTER TABLE c COMMENT 'x'": "old_alter_table = ON",
    "ALTER TABLE c ALTER n SET DEFAULT 5": "old_alter_table = ON",
    "OPTIMIZE TABLE c": "old_alter_table = ON",
    "OPTIMIZE  TABLE c": "sql_mode = ''",
}


@pytest.mark.parametrize("statement", BY_A_COPY)
def test_a_copy_of_the_table_that_computes_stored_columns_anew(
    statement: str, mysql: MysqlServer, schema: str, db: Connection
) -> None:
    """No row image is logged, and values are computed in the time zone of the session that asks for an index."""
    run(
        db,
        "SET time_zone = '+00:00'",
        "CREATE TABLE c (id INT PRIMARY KEY, n INT, at TIMESTAMP, s VARCHAR(9), day DATE AS (DATE(at)) STORED"
        + (", FULLTEXT (s))" if "OPTIMIZE  " in statement else ")"),
        "INSERT INTO c (id, at) VALUES (1, '2024-01-01 23:30:00')",
    )
    days = [mysql.query(f"SELECT day FROM {schema}.c")]
    reading = LogReading(mysql, schema, "c")
    run(db, "SET time_zone = '+05:30'", f"SET {BY_A_COPY[statement] or 'sql_mode = DEFAULT'}", statement)
    days.append(mysql.query(f"SELECT day FROM {schema}.c"))
    assert days[0] != days[1]
    with pytest.raises(SchemaChanged):
        reading.read()


def test_a_copy_of_the_table_that_changes_dates(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(
        db,
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "CREATE TABLE c (id INT PRIMARY KEY, d DATE)",
        "INSERT INTO c VALUES (1, '2024-02-31')",
    )
    text, error = (LogReading(mysql, schema, "c") for _ in range(2))
    text.tables = tuple(replace(table, options=TableOptions(unrepresentable="string")) for table in text.tables)
    run(db, "SET sql_mode = ''", "ALTER TABLE c ADD INDEX i (d), ALGORITHM=COPY")
    assert mysql.query(f"SELECT CAST(d AS CHAR) FROM {schema}.c") == [("0000-00-00",)]
    error.read()
    with pytest.raises(SchemaChanged):
        text.read()


@pytest.fixture
def elsewhere(mysql: MysqlServer, schema: str) -> Iterator[str]:
    name = f"{schema}_e"
    mysql.query(f"CREATE DATABASE {name}")
    yield name
    mysql.query(f"DROP DATABASE {name}")


def refused(reading: LogReading) -> CdcError | None:
    try:
        check_writes(reading.settings, reading.read().summaries)
    except ImageNotWhole as error:
        return error
    return None


@pytest.mark.slow
def test_statements_that_open_no_table_of_a_copied_schema(
    mysql: MysqlServer, schema: str, elsewhere: str, db: Connection
) -> None:
    """According to the server's own list of schemas, which includes those that triggers, views and cascades reach."""
    with mysql.connect(database=elsewhere) as other:
        run(
            other,
            "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE plain (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "INSERT INTO p VALUES (1), (2)",
            f"CREATE TABLE {schema}.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {elsewhere}.p (id) "
            "ON DELETE CASCADE)",
            f"INSERT INTO {schema}.child VALUES (1, 1)",
            f"CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW INSERT INTO {schema}.a VALUES (NEW.id + 100, NULL, 1)",
            "CREATE FUNCTION f(x INT) RETURNS INT DETERMINISTIC "
            f"BEGIN INSERT INTO {schema}.a VALUES (x + 200, NULL, 1); RETURN x; END",
            f"CREATE VIEW v AS SELECT id, v FROM {schema}.a",
            "CREATE VIEW w AS SELECT f(id + 50) AS id, v FROM plain",
            "SET binlog_format = STATEMENT, @x = 5",
        )
        for use in (elsewhere, schema):
            run(other, f"USE {use}")
            reading = LogReading(mysql, schema, "a", "child")
            run(
                other,
                f"REPLACE INTO {elsewhere}.plain VALUES (1, @x)",
                f"REPLACE INTO {elsewhere}.plain SELECT id, 3 FROM {elsewhere}.plain",
                f"CREATE TABLE {elsewhere}.made (id INT)",
                f"INSERT INTO {elsewhere}.made SELECT RAND()",
                f"DROP TABLE {elsewhere}.made",
            )
            assert refused(reading) is None
            for number, statement in enumerate(
                [
                    "INSERT INTO {e}.t VALUES ({n}, 1)",
                    "INSERT INTO {e}.v VALUES ({n} + 300, 1)",
                    "UPDATE {e}.plain SET v = {e}.f({n})",
                    "INSERT INTO {e}.plain SELECT id + {n}, v FROM {e}.w",
                    "DELETE FROM {e}.p WHERE id < {n}",
                    "SELECT {e}.f({n})",
                    "CREATE TABLE {e}.made{n} SELECT {e}.f({n}) AS x",
                    "DELETE FROM {s}.a WHERE id = 1",
                ]
            ):
                reading = LogReading(mysql, schema, "a", "child")
                number += 10 if use == schema else 1
                before = mysql.query("SELECT @@gtid_executed")
                try:
                    run(other, statement.format(e=elsewhere, s=schema, n=number))
                except pymysql.MySQLError as error:
                    print(statement, error)
                assert refused(reading) is not None or before == mysql.query("SELECT @@gtid_executed"), statement
                run(
                    other,
                    f"DELETE FROM {elsewhere}.plain WHERE id > 1",
                    f"REPLACE INTO {elsewhere}.plain VALUES (1, 1)",
                )
            run(other, f"DELETE FROM {schema}.a WHERE id > 100")
            run(other, f"DELETE FROM {elsewhere}.t")
        run(other, f"DROP TABLE {schema}.child")


@pytest.mark.parametrize("bytes_", [10, 300_000])
def test_files_that_are_loaded_as_statements(
    bytes_: int, mysql: MysqlServer, schema: str, elsewhere: str, db: Connection, tmp_path: Path
) -> None:
    """The log then has the file. This stops the run only if the file is loaded into a copied table."""
    rows = tmp_path / "rows"
    rows.write_text("".join(f"{number}\t{number}\n" for number in range(100, 100 + bytes_ // 10)))
    load = f"LOAD DATA LOCAL INFILE '{rows}' REPLACE INTO TABLE"
    with mysql.connect(database=elsewhere) as other:
        run(other, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "SET binlog_format = STATEMENT")
        run(db, "SET binlog_format = STATEMENT")
        # Before the window, and in it.
        run(other, f"{load} t (id, v)")
        reading = LogReading(mysql, schema, "a")
        run(other, f"{load} t (id, @v) SET v = @v + 1", f"XA START 'load_{schema}'", f"{load} t (id, v)")
        run(other, f"XA END 'load_{schema}'", f"XA PREPARE 'load_{schema}'", f"XA COMMIT 'load_{schema}'")
        mysql.query(f"UPDATE {schema}.a SET v = v + 1 WHERE id = 1")
        assert len(reading.read().before["a"]) == 1
        run(db, f"{load} a (id, v)")
        with pytest.raises(ImageNotWhole, match="LOAD"):
            reading.read()
