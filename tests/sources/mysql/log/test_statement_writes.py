"""Changes that are logged as statements are accepted only if they provably wrote to no copied table."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pymysql
import pytest

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import ImageNotWhole, UnknownEvent
from airflow_provider_cdc.sources.api.window import SegmentSummary
from airflow_provider_cdc.sources.mysql.log.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.log.statements.meaning import FUNCTIONS
from harness.mysql_server import MysqlServer
from tests.seeds import seeds
from tests.sources.changes import key
from tests.sources.mysql.log.reading import LogReading, Window

Connection: TypeAlias = "pymysql.Connection[Any]"

CHECKSUM = (
    "COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`, `v`, convert(`w` using utf8mb4), "
    "CONCAT(ISNULL(`v`), ISNULL(`w`)))) AS UNSIGNED)), 10, 16)), 0) AS crc"
)
COLUMNS = "(db, tbl, chunk, chunk_index, lower_boundary, upper_boundary, this_cnt, this_crc)"
CHECKSUMS_TABLE = """CREATE TABLE IF NOT EXISTS `percona_{s}`.`checksums` (
    db CHAR(64) NOT NULL, tbl CHAR(64) NOT NULL, chunk INT NOT NULL, chunk_time FLOAT NULL,
    chunk_index VARCHAR(200) NULL, lower_boundary TEXT NULL, upper_boundary TEXT NULL, this_crc CHAR(40) NOT NULL,
    this_cnt INT NOT NULL, master_crc CHAR(40) NULL, master_cnt INT NULL,
    ts TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    PRIMARY KEY (db, tbl, chunk), INDEX ts_db_tbl (ts, db, tbl)) ENGINE=InnoDB DEFAULT CHARSET=utf8"""
"""As pt-table-checksum makes it, and below what it runs, in its order."""
PT_TABLE_CHECKSUM = (
    "/*!40101 SET @@binlog_format := 'STATEMENT' */",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION innodb_lock_wait_timeout = 1",
    "CREATE DATABASE IF NOT EXISTS `percona_{s}` /* pt-table-checksum */",
    "USE `percona_{s}`",
    CHECKSUMS_TABLE,
    "USE `{s}`",
    "DELETE FROM `percona_{s}`.`checksums` WHERE db = '{s}' AND tbl = 'a'",
    (
        f"REPLACE INTO `percona_{{s}}`.`checksums` {COLUMNS} SELECT '{{s}}', 'a', '1', 'PRIMARY', '1', '1', "
        f"COUNT(*) AS cnt, {CHECKSUM} FROM `{{s}}`.`a` FORCE INDEX(`PRIMARY`) "
        "WHERE ((`id` >= '1')) AND ((`id` <= '1')) /*checksum chunk*/"
    ),
    (
        "UPDATE `percona_{s}`.`checksums` SET chunk_time = '0.001', master_crc = 'f00', master_cnt = '1' "
        "WHERE db = '{s}' AND tbl = 'a' AND chunk = '1'"
    ),
    (
        f"REPLACE INTO `percona_{{s}}`.`checksums` {COLUMNS} SELECT '{{s}}', 'a', '2', 'PRIMARY', NULL, '1', COUNT(*), "
        "'0' FROM `{s}`.`a` FORCE INDEX(`PRIMARY`) WHERE ((`id` < '1')) ORDER BY `id` /*past lower chunk*/"
    ),
    (
        f"REPLACE INTO `percona_{{s}}`.`checksums` {COLUMNS} SELECT '{{s}}', 'a', '3', 'PRIMARY', '9', NULL, COUNT(*), "
        "'0' FROM `{s}`.`a` FORCE INDEX(`PRIMARY`) WHERE ((`id` > '9')) ORDER BY `id` /*past upper chunk*/"
    ),
    (
        f"REPLACE INTO `percona_{{s}}`.`checksums` {COLUMNS} SELECT '{{s}}', 'a', '1', NULL, NULL, NULL, "
        f"COUNT(*) AS cnt, {CHECKSUM} FROM `{{s}}`.`a` /*checksum table*/"
    ),
)


def run(connection: Connection, *statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            # In the character set of the session, which the driver does not know.
            cursor.execute(statement.encode("latin1") if "\xa0" in statement else statement)


@pytest.fixture
def db(mysql: MysqlServer, schema: str) -> Iterator[Connection]:
    """A session in the copied schema whose changes are logged as statements, beside a schema that is not copied."""
    with mysql.connect(database=schema) as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY, v INT, w VARCHAR(20))", "INSERT INTO a VALUES (1, 1, 'x')")
        # The server lets no trigger or function change a table that its statement reads.
        run(connection, "CREATE TABLE r (id INT PRIMARY KEY, v INT)", "INSERT INTO r VALUES (1, 1)")
        run(connection, f"CREATE DATABASE percona_{schema}", CHECKSUMS_TABLE.format(s=schema))
        run(connection, f"CREATE TABLE percona_{schema}.c (id INT PRIMARY KEY, v INT)")
        run(connection, f"INSERT INTO percona_{schema}.c VALUES (1, 1)", "SET binlog_format = STATEMENT")
        yield connection
        run(connection, "SET binlog_format = ROW, foreign_key_checks = OFF", f"DROP DATABASE percona_{schema}")


def refusal(reading: LogReading, window: Window | None = None) -> ImageNotWhole | None:
    """Return the result of the reader, or of the check after it, for the log since ``reading`` began."""
    try:
        window = window or reading.read()
    except ImageNotWhole as error:
        return error
    apart, together = (_refusal(reading, summaries) for summaries in (window.summaries, window.together))
    assert str(apart) == str(together)
    return apart


def _refusal(reading: LogReading, summaries: Sequence[SegmentSummary]) -> ImageNotWhole | None:
    try:
        check_writes(
            reading.settings,
            [
                records.decode(SegmentSummary, json.loads(json.dumps(records.encode(summary))), "as a retry finds it")
                for summary in summaries
            ],
        )
    except ImageNotWhole as error:
        return error
    return None


def test_pt_table_checksum(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, f"DROP DATABASE percona_{schema}")
    reading = LogReading(mysql, schema, "a")
    mysql.query(f"UPDATE {schema}.a SET v = 2")
    run(db, *(statement.format(s=schema) for statement in PT_TABLE_CHECKSUM))
    mysql.query("FLUSH BINARY LOGS")
    run(db, *(statement.format(s=schema) for statement in PT_TABLE_CHECKSUM))
    mysql.query(f"INSERT INTO {schema}.a VALUES (2, 2, 'y')")
    assert mysql.query(f"SELECT COUNT(*), SUM(this_cnt) FROM percona_{schema}.checksums") == [(3, 1)]
    window = reading.read()
    assert window.before["a"] == {key(1): (1, 1, "x"), key(2): None}
    assert any(summary.writes for summary in window.summaries)
    assert refusal(reading, window) is None


WRITES = "BEGIN INSERT IGNORE INTO {s}.a VALUES (77, x, NULL); RETURN x; END"
HIDDEN = {
    "a trigger": (
        ["CREATE TRIGGER {p}.tr AFTER INSERT ON {p}.c FOR EACH ROW INSERT INTO {s}.a VALUES (NEW.id, 1, '')"],
        "INSERT INTO {p}.c SELECT id + 5, v FROM {s}.r",
        ["DROP TRIGGER IF EXISTS {p}.tr"],
    ),
    "a view as target": (
        ["CREATE VIEW {p}.w AS SELECT id, v FROM {s}.a"],
        "INSERT INTO {p}.w SELECT id + 5, v FROM {s}.r",
        ["DROP VIEW {p}.w", "CREATE TABLE {p}.w (id INT PRIMARY KEY, v INT)"],
    ),
    "a cascade": (
        [
            (
                "CREATE TABLE {s}.child (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES {p}.c (id) "
                "ON DELETE CASCADE)"
            ),
            "INSERT INTO {s}.child VALUES (1, 1)",
        ],
        "DELETE FROM {p}.c WHERE id IN (SELECT id FROM {s}.r)",
        [],
    ),
    "a cascade of a cascade": (
        [
            "CREATE TABLE {p}.middle (c INT PRIMARY KEY, FOREIGN KEY (c) REFERENCES {p}.c (id) ON DELETE CASCADE)",
            "INSERT INTO {p}.middle VALUES (1)",
            (
                "CREATE TABLE {s}.child (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES {p}.middle (c) "
                "ON DELETE SET NULL)"
            ),
            "INSERT INTO {s}.child VALUES (1, 1)",
        ],
        "DELETE FROM {p}.c WHERE id IN (SELECT id FROM {s}.r)",
        [],
    ),
    "a function": (
        ["CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES],
        "REPLACE INTO {p}.c SELECT id, f(v) FROM {s}.r",
        [],
    ),
    "a function with the name of a built-in one": (
        ["CREATE FUNCTION {s}.crc32(x INT) RETURNS INT DETERMINISTIC " + WRITES],
        "REPLACE INTO {p}.c SELECT id, {s}.CRC32(v) FROM {s}.r",
        [],
    ),
    "a function that is built in without a space": (
        ["CREATE FUNCTION {s}.max (x INT) RETURNS INT DETERMINISTIC " + WRITES],
        "REPLACE INTO {p}.c SELECT id, MAX (v) FROM {s}.r",
        [],
    ),
    "the same behind a comment": (
        ["CREATE FUNCTION {s}.max (x INT) RETURNS INT DETERMINISTIC " + WRITES],
        "REPLACE INTO {p}.c SELECT id, MAX/**/(v) FROM {s}.r",
        [],
    ),
    "a view that is read": (
        [
            "CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES,
            "CREATE VIEW {s}.w AS SELECT id, f(v) AS v FROM {s}.r",
        ],
        "REPLACE INTO {p}.c SELECT id, v FROM {s}.w",
        ["DROP VIEW {s}.w", "CREATE TABLE {s}.w (id INT PRIMARY KEY, v INT)"],
    ),
    "a view with the name of a copied table in other letters": (
        [
            "CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES,
            "CREATE VIEW {s}.R AS SELECT id, f(v) AS v FROM {s}.r",
        ],
        "REPLACE INTO {p}.c SELECT id, v FROM {s}.R",
        [],
    ),
    "a function with a reserved name": (
        ["CREATE FUNCTION {s}.`key`(x INT) RETURNS INT DETERMINISTIC " + WRITES],
        "REPLACE INTO {p}.c SELECT id, {s}.KEY(v) FROM {s}.r",
        [],
    ),
    **{
        f"a table right behind the number {number}": (
            [
                "CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES,
                "CREATE VIEW {s}.w AS SELECT id, v FROM {s}.r WHERE f(v) > 0",
            ],
            f"REPLACE INTO {{p}}.c SELECT id, {number}FROM {{s}}.w",
            [],
        )
        for number in ("1.5", "1e1", "1.e1", "1e+1", ".5")
    },
    "a comment right behind a star": (
        ["CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES],
        "REPLACE INTO {p}.c SELECT id, 5*/*'*/f(v)/*'*/ FROM {s}.r",
        [],
    ),
    "a space of latin1": (
        [
            "CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES,
            "CREATE VIEW {s}.w AS SELECT id, v FROM {s}.r WHERE f(v) > 0",
            "SET NAMES latin1",
        ],
        "REPLACE INTO {p}.c SELECT id, v\xa0FROM\xa0{s}.w",
        [],
    ),
    "a second table": (
        [],
        "UPDATE {p}.c, {s}.a SET c.v = 5, a.v = 6 WHERE c.id = a.id",
        [],
    ),
    "a joined table": (
        [],
        "UPDATE {p}.c JOIN {s}.a ON c.id = a.id SET c.v = 5, a.v = 6",
        [],
    ),
    "several tables to delete from": (
        [],
        "DELETE FROM {p}.c, {s}.a USING {p}.c JOIN {s}.a ON c.id = a.id",
        [],
    ),
    "a versioned comment": (
        [],
        "/*!80000 UPDATE {s}.a SET v = 5 */",
        [],
    ),
    "what other settings take for a string": (
        [
            "CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES,
            "SET sql_mode = 'ANSI_QUOTES'",
        ],
        'REPLACE INTO {p}.c SELECT id, "f"(v) FROM {s}.r',
        [],
    ),
    "what other settings take for the end of a string": (
        [
            "CREATE FUNCTION {s}.f(x INT) RETURNS INT DETERMINISTIC " + WRITES,
            "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
        ],
        "REPLACE INTO {p}.c SELECT id, '\\' = f(v) OR ' ' = v FROM {s}.r",
        [],
    ),
}
"""What is made ready, the statement that changes a copied row, and what would wipe out the traces."""


@pytest.mark.parametrize(
    ("hidden", "when"),
    [
        (hidden, when)
        for hidden, (*_, undone) in HIDDEN.items()
        for when in ("it stays", *(("undone in the window", "undone after it") if undone else ()))
    ],
)
def test_what_reaches_a_copied_table_never_passes(
    hidden: str, when: str, mysql: MysqlServer, schema: str, db: Connection
) -> None:
    ready, statement, undone = (
        [one.format(s=schema, p=f"percona_{schema}") for one in ([part] if isinstance(part, str) else part)]
        for part in HIDDEN[hidden]
    )
    run(db, *ready)
    children = ["child"] if "cascade" in hidden else []
    reading = LogReading(mysql, schema, "a", "r", *children)
    before = [mysql.query(f"SELECT * FROM {schema}.{name}") for name in ("a", *children)]
    run(db, *statement)
    assert before != [mysql.query(f"SELECT * FROM {schema}.{name}") for name in ("a", *children)]
    if when == "undone in the window":
        run(db, *undone)
    try:
        window = reading.read()
    except (ImageNotWhole, UnknownEvent):
        return
    if when == "undone after it":
        run(db, *undone)
    assert refusal(reading, window) is not None


@pytest.mark.parametrize(
    "later",
    [
        "RENAME TABLE {p}.c TO {p}.d, {p}.d TO {p}.c",
        "ALTER TABLE {p}.c RENAME TO {p}.d",
        "DROP TABLE {p}.c",
        "CREATE TRIGGER {p}.tr BEFORE INSERT ON {p}.c FOR EACH ROW SET NEW.v = 1",
        "CREATE VIEW {s}.w AS SELECT 1 AS x",
    ],
)
@pytest.mark.parametrize("within", [True, False])
def test_what_may_have_been_otherwise_at_the_time(
    later: str, within: bool, mysql: MysqlServer, schema: str, db: Connection
) -> None:
    reading = LogReading(mysql, schema, "a")
    statement = f"REPLACE INTO percona_{schema}.c SELECT id, v FROM {schema}.a"
    run(db, statement, f"CREATE TABLE {schema}.plain (id INT PRIMARY KEY)", f"DROP TABLE {schema}.plain")
    assert refusal(reading) is None
    if not within:
        mysql.query("FLUSH BINARY LOGS")
        window = reading.read()
    run(db, later.format(s=schema, p=f"percona_{schema}"))
    if within:
        window = reading.read()
    refused = refusal(reading, window)
    assert refused is not None
    assert "binlog" in refused.where


def test_a_user_who_may_not_see_triggers(mysql: MysqlServer, schema: str, db: Connection) -> None:
    reading = LogReading(mysql, schema, "a")
    run(db, f"REPLACE INTO percona_{schema}.c SELECT id, v FROM {schema}.a")
    user = f"u{schema}"[:32]
    mysql.query(f"CREATE USER {user}@localhost IDENTIFIED BY 'x'")
    mysql.query(f"CREATE USER {user}@`127.0.0.1` IDENTIFIED BY 'x'")
    for host in ("localhost", "`127.0.0.1`"):
        mysql.query(f"GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO {user}@{host}")
        mysql.query(f"GRANT SELECT ON percona_{schema}.* TO {user}@{host}")
    window = reading.read()
    reading.settings = replace(reading.settings, user=user, password="x")
    refused = refusal(reading, window)
    assert refused is not None
    assert f"GRANT SELECT, TRIGGER ON `percona_{schema}`.`c` TO" in refused.hint
    for host in ("localhost", "`127.0.0.1`"):
        mysql.query(f"GRANT TRIGGER ON percona_{schema}.c TO {user}@{host}")
    assert refusal(reading, window) is None


def test_a_trigger_that_a_more_exact_grant_hides(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """Of the grants on schemas that match, the server goes by one alone: the most exact."""
    trigger, statement, _ = HIDDEN["a trigger"]
    run(db, *(one.format(s=schema, p=f"percona_{schema}") for one in trigger))
    reading = LogReading(mysql, schema, "a")
    run(db, str(statement).format(s=schema, p=f"percona_{schema}"))
    window = reading.read()
    user = f"u{schema}"[:32]
    for host in ("localhost", "`127.0.0.1`"):
        mysql.query(f"CREATE USER {user}@{host} IDENTIFIED BY 'x'")
        mysql.query(f"GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO {user}@{host}")
        mysql.query(f"GRANT SELECT ON `percona_{schema}`.* TO {user}@{host}")
        mysql.query(f"GRANT SELECT ON {schema}.* TO {user}@{host}")
        mysql.query(f"GRANT SELECT, TRIGGER ON `percona%`.* TO {user}@{host}")
    reading.settings = replace(reading.settings, user=user, password="x")
    refused = refusal(reading, window)
    assert refused is not None
    assert "lacks TRIGGER" in refused.message


@pytest.mark.slow
def test_each_function_is_built_in(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """Stored functions of these names in the session's schema are not called."""
    made = 0
    for name in sorted(FUNCTIONS):
        for arguments in range(4):
            parameters = ", ".join(f"x{number} INT" for number in range(arguments))
            with contextlib.suppress(pymysql.MySQLError):
                run(db, f"DROP FUNCTION IF EXISTS `{name}`")
                run(
                    db,
                    f"CREATE FUNCTION `{name}` ({parameters}) RETURNS INT DETERMINISTIC "
                    f"BEGIN DELETE FROM {schema}.a; RETURN 1; END",
                )
                made += 1
            values = ", ".join("1" * arguments)
            for call in (f"{name}({values})", f"{name.lower()}({values})"):
                with contextlib.suppress(pymysql.MySQLError):
                    run(db, f"REPLACE INTO percona_{schema}.c SELECT 9, {call} FROM {schema}.r")
        assert mysql.query(f"SELECT COUNT(*) FROM {schema}.a") == [(1,)], name
    assert made == 4 * len(FUNCTIONS)
    run(db, "DO `max` (1, 2, 3)")
    assert mysql.query(f"SELECT COUNT(*) FROM {schema}.a") == [(0,)], "the functions do what they should not"


PIECES: dict[str, Sequence[str]] = {
    "verb": ["INSERT INTO", "REPLACE INTO", "INSERT IGNORE INTO", "UPDATE", "DELETE FROM", "DELETE"],
    "target": ["{p}.c", "{p}.trap", "{p}.v", "{s}.a", "c", "a", "`{p}`.`c`", "{p} . c", "{p}.c AS x", "{p}.c, {s}.a"],
    "columns": ["", "", "(id, v)", "SET v = 3", "SET c.v = 3, v = 4"],
    "source": ["SELECT", "VALUES", "TABLE {s}.r", "", "SELECT DISTINCT", "/*!80000 SELECT */", "SELECT /*+ x */"],
    "list": [
        "id + 3, v",
        "id + 3, f(v)",
        "id + 3, max (v)",
        "MAX(id) + 3, 1",
        "(4, 4)",
        "id + 3, {s}.crc32(v)",
        "id, crc32(v) % 5",
        "9, `f`(1)",
        "id + 3, @x := 5",
        "5, f /* */ (2)",
        "3, 'it''s' 'x\\'' IS NULL",
        "id + 3, (SELECT f(1))",
        "id, v",
    ],
    "from": [
        "FROM {s}.r",
        "FROM r",
        "FROM {s}.view",
        "FROM {s}.r, {s}.view AS y",
        "",
        "FROM {s}.r JOIN {p}.v USING (id)",
    ],
    "end": [
        "",
        "WHERE id < 50",
        "WHERE id IN (SELECT id FROM {s}.view)",
        "ON DUPLICATE KEY UPDATE v = 3",
        "ON DUPLICATE KEY UPDATE v = f(3)",
        "USING {p}.c JOIN {s}.a ON c.id = a.id",
        "WHERE EXISTS (SELECT * FROM {s}.r WHERE f(v) > 0)",
        "LIMIT 1",
        "# {s}\n",
    ],
}


@pytest.mark.parametrize("seed", seeds())
def test_random_statements_that_pass_changed_no_copied_row(
    seed: int, mysql: MysqlServer, schema: str, db: Connection
) -> None:
    other = f"percona_{schema}"
    run(
        db,
        f"CREATE TABLE {other}.trap (id INT PRIMARY KEY, v INT)",
        *(
            f"CREATE TRIGGER {other}.tr_{event} AFTER {event} ON {other}.trap FOR EACH ROW "
            f"UPDATE {schema}.a SET v = v + 1"
            for event in ("INSERT", "UPDATE", "DELETE")
        ),
        f"CREATE VIEW {other}.v AS SELECT id, v FROM {schema}.a",
        *(
            f"CREATE FUNCTION {name} (x INT) RETURNS INT DETERMINISTIC "
            f"BEGIN UPDATE {schema}.a SET w = CONCAT(LEFT(w, 3), UUID_SHORT() % 10000); RETURN x; END"
            for name in ("f", "crc32", "max ")
        ),
        "CREATE VIEW view AS SELECT id, f(v) AS v FROM r",
    )
    chance = random.Random(seed)
    passed = changed = 0
    for _ in range(400):
        words = [chance.choice(choices) for choices in PIECES.values()]
        if words[0] in ("UPDATE", "DELETE", "DELETE FROM") and chance.random() < 0.9:
            words[3:6] = ["", "", ""]
            words[2] = chance.choice(PIECES["columns"][3:]) if words[0] == "UPDATE" else ""
        if words[3] in ("VALUES", "TABLE {s}.r", ""):
            words[4:6] = [words[4] if words[3] == "VALUES" else "", ""]
        statement = " ".join(words).format(s=schema, p=other)
        reading = LogReading(mysql, schema, "a", "r")
        before = mysql.query(f"SELECT * FROM {schema}.a")
        try:
            run(db, statement)
        except pymysql.MySQLError:
            run(db, "ROLLBACK")
            continue
        after = mysql.query(f"SELECT * FROM {schema}.a")
        changed += before != after
        if reading.initial != mysql.query("SELECT @@gtid_executed")[0][0] and refusal(reading) is None:
            passed += 1
            assert before == after, statement
        run(db, f"DELETE FROM {other}.c WHERE id > 1", f"REPLACE INTO {schema}.a VALUES (1, 1, 'x')")
        run(db, f"DELETE FROM {schema}.a WHERE id > 1")
    assert passed > 10, (passed, changed)
    assert changed > 20, (passed, changed)
