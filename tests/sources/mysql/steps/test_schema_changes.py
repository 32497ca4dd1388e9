"""Which schema changes since a copy are carried, and what the log of such a night becomes.

The oracle is the server: rows of the copy and images of the log, carried to the present table, must give the rows that
the server returns at the end. Every case has a table of its own, and all tables are altered in one night.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.tables.table import Evolution, TableName
from harness.mysql_server import MysqlServer
from tests.sources.mysql.steps.schema_nights import Night, after_the_night, started

Start = Callable[..., Night]


@pytest.fixture
def start(mysql: MysqlServer, schema: str) -> Start:
    return partial(started, mysql, schema)


REFUSED: Mapping[str, tuple[list[str], str]] = {
    "computed": (["ALTER TABLE {t} ADD n INT DEFAULT (a + 1)"], "ALTER TABLE … ADD"),
    "timed": (["ALTER TABLE {t} ADD n TIMESTAMP DEFAULT CURRENT_TIMESTAMP"], "ALTER TABLE … ADD"),
    "numbered": (["ALTER TABLE {t} ADD n INT AUTO_INCREMENT UNIQUE"], "ALTER TABLE … ADD"),
    "made": (["ALTER TABLE {t} ADD n INT AS (a + 1)"], "ALTER TABLE … ADD"),
    "key_type": (["ALTER TABLE {t} MODIFY id BIGINT"], "column id of its key"),
    "key_name": (["ALTER TABLE {t} RENAME COLUMN id TO n"], "its key has changed"),
    "key_anew": (
        ["ALTER TABLE {t} DROP PRIMARY KEY, DROP id", "ALTER TABLE {t} ADD id INT PRIMARY KEY FIRST"],
        "ALTER TABLE … DROP PRIMARY",
    ),
    "strict": (["ALTER TABLE {t} MODIFY a INT NOT NULL"], "became NOT NULL"),
    "narrower": (["ALTER TABLE {t} MODIFY a SMALLINT"], "from int to smallint"),
    "sign": (["ALTER TABLE {t} MODIFY a INT UNSIGNED"], "from int to int unsigned"),
    "labels": (["ALTER TABLE {t} MODIFY c ENUM('y', 'x') NOT NULL"], "from enum"),
    "charset": (["ALTER TABLE {t} MODIFY b VARCHAR(20) CHARSET latin1"], "character set"),
    "dropped_again": (["ALTER TABLE {t} ADD n INT", "ALTER TABLE {t} DROP n"], "dropped again"),
    "twice": (["ALTER TABLE {t} MODIFY a BIGINT", "ALTER TABLE {t} MODIFY a INT"], "more than once"),
    "truncated": (["ALTER TABLE {t} ADD n INT", "TRUNCATE {t}"], "TRUNCATE"),
    "swapped": (["ALTER TABLE {t} ADD n INT", "CREATE TABLE x LIKE {t}", "RENAME TABLE {t} TO y, x TO {t}"], "RENAME"),
    "unlogged": (["SET sql_log_bin = 0", "ALTER TABLE {t} ADD n INT", "SET sql_log_bin = 1"], "do not lead to"),
    "emptied": (
        [
            "SET sql_log_bin = 0",
            "TRUNCATE {t}",
            "INSERT INTO {t} (id, c) VALUES (1, 'x')",
            "SET sql_log_bin = 1",
            "ALTER TABLE {t} ADD n INT",
        ],
        "no statement in the log rebuilt it",
    ),
    "replaced_column": (
        [
            "SET sql_log_bin = 0",
            "ALTER TABLE {t} DROP b, ADD b VARCHAR(20) AFTER a",
            "SET sql_log_bin = 1",
            "ALTER TABLE {t} ADD n INT",
        ],
        "TOTAL_ROW_VERSIONS",
    ),
    "replaced_column_and_index": (
        [
            "SET sql_log_bin = 0",
            "ALTER TABLE {t} DROP b, ADD b VARCHAR(20) AFTER a",
            "SET sql_log_bin = 1",
            "CREATE INDEX i ON {t} (a)",
        ],
        "TOTAL_ROW_VERSIONS",
    ),
    "moment": (["ALTER TABLE {t} ADD n DATETIME NOT NULL DEFAULT '2026-01-01'"], "cannot be carried"),
    "digits": (["ALTER TABLE {t} ADD n VARCHAR(9) DEFAULT 007"], "not written as a string"),
    "rounded": (["ALTER TABLE {t} ADD n INT DEFAULT 1.5"], "not written as a whole number"),
    "another_character": (
        ["SET character_set_connection = swe7", "ALTER TABLE {t} ADD n VARCHAR(9) DEFAULT '@'", "SET NAMES utf8mb4"],
        "ALTER TABLE … ADD",
    ),
    "another_label": (
        ["SET sql_mode = ''", "ALTER TABLE {t} ADD n ENUM('p', 'P') DEFAULT 'P'", "SET sql_mode = DEFAULT"],
        "another label",
    ),
    "temporary": (
        [
            "SET binlog_format = 'STATEMENT'",
            "CREATE TEMPORARY TABLE {t} (a INT, b VARCHAR(20), c INT)",
            "ALTER TABLE {t} DROP b, ADD b VARCHAR(20) AFTER a",
            "DROP TEMPORARY TABLE {t}",
            "SET binlog_format = 'ROW'",
        ],
        "ALTER TABLE … DROP",
    ),
}


@pytest.mark.slow
def test_changes_that_need_a_full_read(start: Start) -> None:
    night = start(
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(20), c ENUM('x', 'y') NOT NULL)" for t in REFUSED),
        *(f"INSERT INTO {t} VALUES (1, 1, 'x', 'x')" for t in REFUSED),
        "CREATE TABLE has_virtual (id INT PRIMARY KEY, a INT, v INT AS (a + 1))",
        "INSERT INTO has_virtual (id) VALUES (1)",
        "CREATE TABLE dated (id INT PRIMARY KEY, a INT)",
        "INSERT INTO dated VALUES (1, 1)",
        "SET sql_mode = ''",
        "CREATE TABLE alike (id INT PRIMARY KEY, c ENUM('x', 'X'))",
        "INSERT INTO alike VALUES (1, 1), (2, 2)",
    )
    night.do(*(statement.format(t=t) for t, (statements, _) in REFUSED.items() for statement in statements))
    night.do("ALTER TABLE has_virtual MODIFY a BIGINT")
    # The server finds each label by its text, so each X becomes x.
    night.do("SET sql_mode = ''", "ALTER TABLE alike MODIFY c ENUM('x', 'X', 'y'), ALGORITHM=COPY")
    # The second ALTER changes the date to 0000-00-00.
    night.do(
        "SET sql_mode = 'ALLOW_INVALID_DATES'", "ALTER TABLE dated ADD d DATE", "UPDATE dated SET d = '2026-02-31'"
    )
    night.do("SET sql_mode = ''", "ALTER TABLE dated MODIFY a BIGINT")
    as_text = TableOptions(unrepresentable="string")
    options = [replace(table, options=as_text) if table.name.name == "dated" else table for table in night.point.tables]
    night.point = replace(night.point, tables=tuple(options))
    refused = night.asked({})
    wanted = {t: why for t, (_, why) in REFUSED.items()} | {
        "has_virtual": "generated columns may depend",
        "alike": "from enum",
        "dated": "invalid dates of a new column",
    }
    wrong = {t: refused.get(t, "not refused") for t, why in wanted.items() if why not in refused.get(t, "")}
    assert wrong == {}


def test_a_table_with_a_similar_name_is_another_table(start: Start) -> None:
    """Both tables end with the columns that they had, and only one of them is copied."""
    night = start("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "CREATE TABLE T LIKE t", tables="t")
    night.do("ALTER TABLE T DROP b", "ALTER TABLE T ADD b INT")
    evolutions: dict[TableName, Evolution] = {}
    night.asked(evolutions)
    assert evolutions == {}


CARRIED: Mapping[str, list[str]] = {
    "added": ["ALTER TABLE {t} ADD n INT NOT NULL DEFAULT 7 AFTER a", "ALTER TABLE {t} ALTER n SET DEFAULT 8"],
    "defaults": [
        "ALTER TABLE {t} ADD n INT DEFAULT 7, ADD m VARCHAR(9) DEFAULT 'first'",
        "ALTER TABLE {t} ALTER n SET DEFAULT NULL, ALTER m SET DEFAULT 'second'",
        "ALTER TABLE {t} ALTER m SET DEFAULT 'third', ADD o INT, ALTER n SET DEFAULT 9",
    ],
    "nulls": ["ALTER TABLE {t} ADD COLUMN n JSON, ADD INDEX (a)"],
    "texts": ["ALTER TABLE {t} ADD n VARCHAR(300) NOT NULL DEFAULT 'seven' FIRST, ADD m CHAR(3) NOT NULL DEFAULT ''"],
    "numbers": [
        "ALTER TABLE {t} ADD n DECIMAL(11, 3) DEFAULT -12.5, ADD m DATE DEFAULT '2026-02-28', ADD o BOOL DEFAULT TRUE"
    ],
    "dropped": ["ALTER TABLE {t} DROP a", "ALTER TABLE {t} DROP COLUMN b"],
    "renamed": ["ALTER TABLE {t} RENAME COLUMN a TO z, RENAME COLUMN b TO a"],
    "exchanged": ["ALTER TABLE {t} RENAME COLUMN b TO d, RENAME COLUMN d TO b"],
    "anew": ["ALTER TABLE {t} DROP d", "ALTER TABLE {t} ADD d VARCHAR(20) AFTER b"],
    "labels": [
        "ALTER TABLE {t} MODIFY c ENUM('x', 'y', 'z') NOT NULL",
        "ALTER TABLE {t} ADD n ENUM('p', 'q') DEFAULT 'q'",
    ],
    "wider": ["ALTER TABLE {t} MODIFY a BIGINT, MODIFY u BIGINT UNSIGNED", "ALTER TABLE {t} CHANGE b v VARCHAR(300)"],
    "loosened": ["ALTER TABLE {t} MODIFY c ENUM('x', 'y') COMMENT 'may be NULL'"],
    "three": ["ALTER TABLE {t} ADD n INT DEFAULT 1", "ALTER TABLE {t} ADD m INT DEFAULT 2", "ALTER TABLE {t} DROP a"],
}


@pytest.mark.slow
def test_rows_and_images_become_rows_of_the_present_table(start: Start) -> None:
    names = {f"{name}{number}": case for name, case in CARRIED.items() for number in (0, 1)}
    night = start(
        *(
            f"CREATE TABLE {t} (id INT{'' if t.endswith('1') else ' PRIMARY KEY'}, a INT, b VARCHAR(20), "
            "d VARCHAR(20), c ENUM('x', 'y') NOT NULL, u INT UNSIGNED)"
            for t in names
        ),
        *(
            f"INSERT INTO {t} VALUES (1, -1, 'one', 'I', 'x', 4000000000), (2, NULL, NULL, 'II', 'y', 1), "
            "(3, 3, 'x', '', 'x', 3), (5, -5, 'five', 'V', 'y', 0), (6, 6, '', NULL, 'y', NULL)"
            for t in names
        ),
    )
    bases = {table.name: (table, night.rows(table)) for table in night.point.tables}
    for t, statements in names.items():
        night.do(f"UPDATE {t} SET u = u + 1 WHERE id = 1", f"INSERT INTO {t} (id, c, u) VALUES (4, 'y', 4)")
        for statement in statements:
            night.do(statement.format(t=t), f"UPDATE {t} SET u = u + 10 WHERE id = 2")
            night.do(f"DELETE FROM {t} WHERE id = 3", f"INSERT INTO {t} (id, c, u) VALUES (3, 'x', 30)")
        night.do(f"UPDATE {t} SET u = 77 WHERE id IN (3, 4)", f"DELETE FROM {t} WHERE id = 5")
    night.do("FLUSH BINARY LOGS", "ALTER TABLE three0 ADD last INT", "UPDATE three0 SET last = id")
    evolutions: dict[TableName, Evolution] = {}
    assert night.asked(evolutions) == {}
    tables = [
        replace(table, columns=evolutions[name].columns, eras=evolutions[name].eras)
        for name, (table, _) in bases.items()
    ]
    rolled = after_the_night(night, tables, {name: rows for name, (_, rows) in bases.items()})
    for table in tables:
        assert rolled[table.name] == Counter(night.rows(table)), table.name
    # A table with a change feed is not carried, because the feed has no entry for a row that such a statement changed.
    assert night.asked(None).keys() == names.keys()


def test_the_present_columns_are_those_at_a_past_position(start: Start) -> None:
    """A later statement replaced the last label, or it added a column anew with its labels exchanged."""
    tables = ("label", "anew", "same")
    night = start(
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY, c ENUM('x', 'y'))" for t in tables),
        *(f"INSERT INTO {t} VALUES (0, 'x')" for t in tables),
    )
    night.do("ALTER TABLE label MODIFY c ENUM('x', 'y', 'z')", "INSERT INTO label VALUES (1, 'z')")
    night.do(*(f"ALTER TABLE {t} ADD n ENUM('p', 'q') DEFAULT 'q'" for t in ("anew", "same")))
    night.do("INSERT INTO anew VALUES (1, 'x', 'p')")
    _, end = night.source.here()
    night.do("DELETE FROM label", "ALTER TABLE label MODIFY c ENUM('x', 'y', 'w')")
    night.do("CREATE INDEX i ON same (n)", "ALTER TABLE anew DROP n")
    night.do("ALTER TABLE anew ADD n ENUM('q', 'p') DEFAULT 'q'")
    evolutions: dict[TableName, Evolution] = {}
    point = night.point
    refused = night.source.refusals_since(
        point.identity, point.position, point.tables, end, StepOptions(), evolutions=evolutions
    )
    assert {table.name for table in refused} == {"label", "anew"}
    assert {table.name for table in evolutions} >= {"same"}
