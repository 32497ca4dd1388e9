"""Statements from clients with any character set. The bytes are not always in the character set that the log names."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.mysql.log.events import query
from airflow_provider_cdc.sources.mysql.log.statements.column_changes import column_changes
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement, decode
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, meaning
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames
from airflow_provider_cdc.sources.mysql.server import log_protocol
from harness.mysql_server import MysqlServer
from tests.seeds import examples, seeds
from tests.sources.mysql.log.reading import Connection, LogReading, log_end, run
from tests.sources.mysql.log.statements.test_logged_statements import event_bodies, raw, sent

CODECS = {
    "utf8mb4": "utf-8", "latin1": "cp1252", "cp1251": "cp1251", "cp932": "cp932", "sjis": "shift_jis", "gbk": "gbk",
    "gb18030": "gb18030", "gb2312": "gb2312", "big5": "big5", "euckr": "cp949", "ujis": "euc_jp",
}  # fmt: skip
COM_STMT_PREPARE, COM_STMT_EXECUTE = 0x16, 0x17
WIDE = ("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis")


@pytest.fixture
def elsewhere(mysql: MysqlServer, schema: str) -> Iterator[str]:
    name = f"{schema}_e"
    mysql.query(f"CREATE DATABASE {name}")
    yield name
    mysql.query(f"DROP DATABASE IF EXISTS {name}")


@pytest.mark.slow
@pytest.mark.parametrize("charset", WIDE)
def test_bytes_are_divided_into_characters_as_the_server_divides_them(charset: str, mysql: MysqlServer) -> None:
    """A backslash or a backtick that is half of a character quotes nothing."""
    with mysql.connect() as connection:
        run(connection, f"SET NAMES {charset}")
        halves = 0
        for lead in range(0x80, 0x100):
            for half in (b"\\", b"`"):
                one = bytes([lead]) + half
                before, after = (b"DO '", b"'") if half == b"\\" else (b"DO (SELECT 1 AS `x", b"`)")
                accepted = sent(connection, before + one + after)
                assert accepted == (not decode(one, charset).endswith(half.decode())), one
                halves += accepted
        assert halves or charset in ("eucjpms", "euckr", "gb2312", "ujis")


@pytest.mark.parametrize("charset", ["gbk", "gb2312", "gb18030", "euckr", "big5", "ujis", "cp932", "sjis"])
def test_a_statement_that_concerns_no_copied_table_stops_nobody(
    charset: str, mysql: MysqlServer, schema: str, elsewhere: str
) -> None:
    """Neither a run that works meanwhile, nor a run that begins after it in the same log file."""
    with mysql.connect(database=schema, charset="utf8mb4") as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY)")
        reading = LogReading(mysql, schema, "a")
        name = "中"
        run(connection, f"SET NAMES {charset}")
        user = f"{schema[-20:]}_u"
        for statement in (
            f"CREATE USER {user}@'%' COMMENT '{name}'",
            f"CREATE USER `{name}{user}`",
            f"ALTER USER {user} COMMENT '{name}{name}'",
            f"CREATE TABLE {elsewhere}.`{name}` (id INT)",
            f"GRANT SELECT ON {elsewhere}.`{name}` TO {user}",
            f"CREATE TABLE {elsewhere}.k SELECT 1 AS `{name}`",
            f"CREATE TABLE {elsewhere}.`k{name}` SELECT 1 AS `{name}{name}`",
            f"RENAME TABLE {elsewhere}.`{name}` TO {elsewhere}.`{name}{name}`, {elsewhere}.k TO {elsewhere}.`{name}`",
            f"CREATE VIEW {elsewhere}.`v{name}` AS SELECT 1 AS `{name}`",
            f"DROP TABLE {elsewhere}.`{name}{name}`, {elsewhere}.`{name}`",
            f"CREATE DATABASE `{elsewhere}{name}`",
            f"DROP DATABASE `{elsewhere}{name}`",
            f"DROP USER {user}, `{name}{user}`",
        ):
            raw(connection, statement.encode(CODECS[charset]))
        reading.read()
        LogReading(mysql, schema, "a").read()


@pytest.mark.parametrize(
    ("charset", "name", "written"),
    [
        ("utf8mb4", "q", b"q\xff"),
        ("utf8mb4", "q?", "q😀".encode()),
        ("cp932", "y?", b"y\x81\xad"),
        ("cp932", "z", b"z\xfd"),
        # One question mark for two bytes, and another sign for a byte without a character.
        ("gbk", "y?_x", b"y\x81!_x"),
        ("tis620", "z\ufffd", b"z\xff"),
    ],
)
def test_a_name_that_the_server_cannot_convert_may_be_the_name_of_a_copied_table(
    charset: str, name: str, written: bytes, mysql: MysqlServer, schema: str
) -> None:
    with mysql.connect(database=schema, charset="utf8mb4") as connection:
        run(connection, f"CREATE TABLE `{name}` (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
        reading, other = LogReading(mysql, schema, name), LogReading(mysql, schema, "other")
        run(connection, f"SET NAMES {charset}")
        raw(connection, b"TRUNCATE `" + written + b"`")
        with pytest.raises(SchemaChanged):
            reading.read()
        other.read()


def prepared(connection: Connection, statement: bytes, charset: str) -> None:
    """Prepare a statement through the binary protocol, and execute it in another character set."""
    driver: Any = connection
    driver._execute_command(COM_STMT_PREPARE, statement)
    number = driver._read_packet().get_all_data()[1:5]
    run(connection, f"SET NAMES {charset}")
    driver._execute_command(COM_STMT_EXECUTE, number + b"\0\1\0\0\0")
    driver._read_query_result()


def in_sql(connection: Connection, statement: bytes, charset: str) -> None:
    """Prepare a statement in SQL, and execute it in another character set. The server prepares the text in UTF-8."""
    raw(connection, b"PREPARE one FROM '" + statement.replace(b"'", b"''") + b"'")
    run(connection, f"SET NAMES {charset}", "EXECUTE one")


def in_procedure(connection: Connection, statement: bytes, charset: str) -> None:
    """Execute a statement in a procedure that changes the character set of its session."""
    raw(connection, b"DROP PROCEDURE IF EXISTS p")
    raw(connection, b"CREATE PROCEDURE p() BEGIN SET NAMES " + charset.encode() + b"; " + statement + b"; END")
    run(connection, "CALL p()")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("charset", "logged", "name", "written", "execute"),
    [
        ("gbk", "latin1", "表", b"\xb1\xed", prepared),
        ("gbk", "utf8mb4", "誠", b"\xd5\\", in_procedure),
        ("sjis", "gbk", "表", b"\x95\\", prepared),
        ("latin1", "utf8mb4", "größe", b"gr\xf6\xdfe", in_procedure),
        ("cp1251", "koi8r", "дом", b"\xe4\xee\xec", prepared),
        ("utf8mb4", "big5", "größe", "größe".encode(), in_procedure),
        ("swe7", "latin1", "kök", b"k|k", prepared),
    ],
)
def test_a_statement_in_a_character_set_that_the_log_does_not_name(
    charset: str,
    logged: str,
    name: str,
    written: bytes,
    execute: Callable[[Connection, bytes, str], None],
    mysql: MysqlServer,
    schema: str,
    elsewhere: str,
) -> None:
    """The statement changes a copied table, and the log shows another name."""
    mysql.query(f"CREATE TABLE {schema}.other (id INT PRIMARY KEY)")
    other = LogReading(mysql, schema, "other")
    with mysql.connect(database=schema, charset="utf8mb4") as connection:
        for statement in (b"TRUNCATE `N`", b"RENAME TABLE `N` TO n", b"ALTER TABLE `N` DROP v", b"DROP DATABASE `SN`"):
            own, table = (f"{elsewhere}{name}", "t") if b"SN" in statement else (schema, name)
            run(connection, "SET NAMES utf8mb4", f"CREATE DATABASE IF NOT EXISTS `{own}`")
            run(connection, f"DROP TABLE IF EXISTS `{name}`, n")
            run(connection, f"CREATE TABLE `{own}`.`{table}` (id INT PRIMARY KEY, v INT)")
            reading = LogReading(mysql, own, table)
            start = log_end(mysql).position
            run(connection, f"SET NAMES {charset}")
            text = statement.replace(b"SN", elsewhere.encode() + written).replace(b"N`", written + b"`")
            execute(connection, text, logged)
            found = query(event_bodies(mysql, start, log_protocol.QUERY)[-1])
            assert (found.charset, found.raw) == (logged, text)
            with pytest.raises(SchemaChanged):
                reading.read()
        other.read()


def test_a_prepared_statement_keeps_its_bytes_when_the_character_set_changes(mysql: MysqlServer, schema: str) -> None:
    with mysql.connect(database=schema, charset="utf8mb4") as connection:
        run(connection, "CREATE TABLE größe (id INT PRIMARY KEY)", "CREATE TABLE größer (id INT PRIMARY KEY)")
        reading, other = LogReading(mysql, schema, "größe"), LogReading(mysql, schema, "größer")
        run(connection, "PREPARE one FROM 'TRUNCATE größe'", "SET NAMES latin1", "EXECUTE one")
        other.read()
        with pytest.raises(SchemaChanged):
            reading.read()
        # The log names the columns in the wrong character set, so the statement cannot be carried.
        run(connection, "SET NAMES utf8mb4", "PREPARE two FROM 'ALTER TABLE größer ADD é INT'", "SET NAMES latin1")
        start = log_end(mysql).position
        run(connection, "EXECUTE two")
        (body,) = event_bodies(mysql, start, log_protocol.QUERY)
        assert column_changes(query(body), TrackedNames([TableName(schema, "größer")])) is None


def test_a_statement_that_may_concern_a_copied_table_and_cannot_be_read_stops_with_the_reason() -> None:
    """A later server may have a character set that nobody knows here."""
    statement = Statement("TRUNCATE `t\udcff`", "s", charset="", raw=b"TRUNCATE `t\xff`")
    found = meaning(statement, TrackedNames([TableName("s", "t")]))
    assert found.effect is Effect.NOT_UNDERSTOOD
    assert "its text is not clear in" in found.detail


@dataclass
class Case:
    statement: str
    concerns: bool


NAMES = {
    "utf8mb4": ["größe", "表", "注文", "дом"], "latin1": ["größe", "café"], "cp1251": ["дом", "ящик"],
    "cp932": ["表", "注文", "ソ"], "sjis": ["表", "注文", "ソ"], "gbk": ["表", "誠", "注文"],
    "gb18030": ["表", "誠", "größe"],
    "gb2312": ["表", "注文"], "big5": ["表", "功", "注文"], "euckr": ["表", "한글"], "ujis": ["表", "注文"],
}  # fmt: skip
TEXTS = {charset: [*names, "x", ""] for charset, names in NAMES.items()}


def random_case(choose: random.Random, charset: str, copied: str, other: str) -> Case:
    names = [*NAMES[charset], "t", "u"]

    def name(schema: str) -> str:
        one = choose.choice(names)
        quoted = f"`{one}`" if choose.random() < 0.7 or one in ("ソ",) else one
        return f"{schema}.{quoted}"

    text = choose.choice(TEXTS[charset])
    mine, foreign, also = name(copied), name(other), name(other)
    if also == foreign or also.replace("`", "") == foreign.replace("`", ""):
        also = f"{other}.more"
    comment = f"/* {text} */ " if choose.random() < 0.3 else ""
    return choose.choice(
        [
            Case(f"TRUNCATE {comment}{mine}", True),
            Case(f"DROP TABLE {foreign}, {comment}{mine}", True),
            Case(f"RENAME TABLE {foreign} TO {other}.`x{text}y`, {mine} TO {copied}.`z{text}`", True),
            Case(f"ALTER TABLE {mine} ADD c INT COMMENT '{text}'", True),
            Case(f"DROP DATABASE {copied}", True),
            Case(f"TRUNCATE {comment}{foreign}", False),
            Case(f"DROP TABLE {foreign}", False),
            Case(f"RENAME TABLE {comment}{foreign} TO {other}.`x{text}y`", False),
            Case(f"CREATE TABLE {other}.`n{text}` SELECT 1 AS `c{text}`", False),
            Case(f"CREATE TABLE {other}.`n{text}` LIKE {mine}", False),
            Case(f"ALTER TABLE {foreign} {comment}ADD `c{text}` INT COMMENT '{text}'", False),
            Case(f"CREATE VIEW {other}.`v{text}` AS SELECT '{text}' AS `c{text}` FROM {mine}", False),
            Case(f"CREATE PROCEDURE {other}.`p{text}`() TRUNCATE {mine}", False),
            Case(f"DROP DATABASE {other}", False),
            Case(f"GRANT SELECT ON {foreign} TO 'cdc_{text}'@'%'", False),
            Case(f"CREATE USER 'cdc_n{text}'@'%' COMMENT '{text}'", False),
        ]
    )


ALL = sorted({name for names in NAMES.values() for name in names} | {"t", "u"})


def fill(connection: Connection, *schemas: str) -> None:
    for schema in schemas:
        run(connection, f"DROP DATABASE IF EXISTS `{schema}`", f"CREATE DATABASE `{schema}`")
        run(connection, *(f"CREATE TABLE `{schema}`.`{name}` (id INT PRIMARY KEY)" for name in ALL))
        run(connection, f"CREATE TABLE `{schema}`.more (id INT PRIMARY KEY)")


def state(server: MysqlServer, schema: str) -> list[Any]:
    """According to the server itself: the tables of a schema with their columns, and the storage of all of them."""
    tables = server.query(
        "SELECT t.TABLE_NAME, COUNT(*) FROM information_schema.TABLES t JOIN information_schema.COLUMNS c "
        "USING (TABLE_SCHEMA, TABLE_NAME) WHERE t.TABLE_SCHEMA = %s GROUP BY 1 ORDER BY 1",
        [schema],
    )
    storage = server.query(
        "SELECT NAME, TABLE_ID FROM information_schema.INNODB_TABLES WHERE NAME LIKE %s ORDER BY 1",
        [schema.replace("_", "\\_") + "/%"],
    )
    return [*tables, *storage]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_statements_in_all_character_sets(seed: int, mysql: MysqlServer, schema: str, elsewhere: str) -> None:
    """Each statement that changed a copied table stops the run; a statement about other tables stops nobody.

    If a statement is executed in another character set than it was written in, its bytes may be no statement in the
    character set that the log names. Then it is not understood, and stops the run.
    """
    choose = random.Random(seed)
    names = TrackedNames([TableName(schema, name) for name in ALL])
    changed = passed = 0
    programs = f"{elsewhere}_p"
    mysql.query(f"CREATE DATABASE {programs}")
    with mysql.connect(charset="utf8mb4") as admin, mysql.connect(database=programs, charset="utf8mb4") as connection:
        fill(admin, schema, elsewhere)
        run(admin, *(f"CREATE USER IF NOT EXISTS 'cdc_{name}'@'%'" for name in [*ALL, "x", ""]))
        try:
            for _ in range(examples(100)):
                charset = choose.choice([*CODECS])
                case = random_case(choose, charset, schema, elsewhere)
                way = choose.choice([prepared, in_procedure, in_sql]) if choose.random() < 0.4 else None
                is_preparable = not any(word in case.statement for word in ("VIEW", "PROC", "USER"))
                way = way if is_preparable else None
                before, others = state(mysql, schema), state(mysql, elsewhere)
                start = log_end(mysql).position
                run(connection, f"SET NAMES {charset}")
                with contextlib.suppress(pymysql.MySQLError):
                    text = case.statement.encode(CODECS[charset])
                    if way is not None:
                        way(connection, text, choose.choice([*CODECS]))
                    else:
                        raw(connection, text)
                bodies = [
                    body for body in event_bodies(mysql, start, log_protocol.QUERY) if not body.endswith(b"BEGIN")
                ]
                found = [meaning(query(body), names).effect for body in bodies]
                is_changed = state(mysql, schema) != before
                shown = charset, case.statement, way, found, bodies
                assert not is_changed or {*found} - {Effect.HARMLESS}, shown
                if not case.concerns and way is not in_sql:
                    assert not is_changed
                    unclear = set() if way is None else {Effect.NOT_UNDERSTOOD}
                    assert {*found} <= {Effect.HARMLESS, *unclear}, shown
                    passed += bool(found)
                changed += is_changed
                fill(admin, *([schema] if is_changed else []))
                fill(admin, *([elsewhere] if state(mysql, elsewhere) != others else []))
                run(admin, *(f"DROP USER IF EXISTS 'cdc_n{name}'@'%'" for name in [*ALL, "x", ""]))
        finally:
            run(admin, *(f"DROP USER IF EXISTS 'cdc_{name}'@'%'" for name in [*ALL, "x", ""]))
            run(admin, f"DROP DATABASE {programs}")
    assert changed > 10
    assert passed > 30
