"""VIRTUAL columns and columns that are left out, in complete runs, while sessions with other settings write.

The oracle is a SELECT at the run's position, while no session writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.lake import read_changes
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of

VIRTUAL = (
    "total DECIMAL(20,4) AS (PRICE * Qty), host VARCHAR(60) AS (SUBSTR(email, LOCATE('@', email) + 1)), "
    "day VARCHAR(10) AS (DATE_FORMAT(at, '%Y-%m')), flag VARCHAR(9) AS (doc->>'$.flag'), code VARCHAR(9) AS (TRIM(c)), "
    "shop TINYINT AS (email LIKE '%@x.com'), uuid CHAR(36) AS (BIN_TO_UUID(uid))"
)
REFUSED = (
    "half DECIMAL(20,10) AS (qty / 3), local DATE AS (DATE(seen)), padded VARCHAR(20) AS (CONCAT(c, '.')), "
    "wide DECIMAL(60,0) AS (qty), hidden ENUM('a', x'a6d9') CHARACTER SET gbk"
)
PLAIN = (
    "qty INT, price DECIMAL(10,2), email VARCHAR(60), at DATETIME, seen TIMESTAMP NULL, c CHAR(8), doc JSON, "
    "uid BINARY(16), mood ENUM('a?', '😀', '?')"
)
READ = ["qty", "total", "host", "day", "flag", "code", "shop", "uuid", "mood"]
COLUMNS = {"keyed": ["id", *READ], "keyless": READ}
"""The copied columns of each table. The key is text in a character set in which two codes may mean one character."""

INSERT = (
    "INSERT INTO {0} ({1}qty, price, email, at, seen, c, doc, uid, mood, hidden) VALUES ({2}{3}, {3} * 1.5, "
    "'i{3}@X.com', '2024-02-28 23:59:59' + INTERVAL {3} MONTH, '2024-01-01 23:30:00', 'c{3}', "
    '\'{{"flag": "😀{3}"}}\', REPEAT(CHAR({3}), 16), 1 + {3} % 3, 1 + {3} % 2)'
)
SESSIONS = (
    "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH', time_zone = '+05:30', div_precision_increment = 0",
    "sql_mode = '', collation_connection = 'utf16_general_ci', time_zone = '-11:00', div_precision_increment = 9",
    "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES', collation_connection = 'latin5_turkish_ci', lc_time_names = 'de_DE'",
    "default_collation_for_utf8mb4 = 'utf8mb4_general_ci', div_precision_increment = 2, time_zone = '+05:30'",
)


def insert(table: str, number: int) -> str:
    key = table == "keyed"
    return INSERT.format(table, "id, " if key else "", f"'表{number}', " if key else "", number)


def writes(first: int) -> Iterator[tuple[str, str]]:
    """Statements, each with the settings of the session that runs it."""
    for at, session in enumerate(SESSIONS):
        for table in COLUMNS:
            yield session, f"UPDATE {table} SET qty = qty + 1 WHERE qty % 8 = {at}"
            yield session, f"DELETE FROM {table} WHERE qty % 16 = {at + 8}"
            yield session, insert(table, first + at)
            changed = "seen = seen + INTERVAL 1 DAY, hidden = 3 - hidden"
            yield session, f"UPDATE {table} SET {changed} WHERE qty % 8 = {at + 4}"


@pytest.fixture
def shop(mysql: MysqlServer, schema: str) -> MysqlServer:
    for table, key in (("keyed", "id VARCHAR(20) CHARACTER SET sjis PRIMARY KEY, "), ("keyless", "")):
        mysql.query(f"CREATE TABLE {schema}.{table} ({key}{PLAIN}, {VIRTUAL}, {REFUSED})")
        with mysql.connect(database=schema, charset="utf8mb4") as connection, connection.cursor() as cursor:
            for number in range(1, 60):
                cursor.execute(insert(table, number))
    return mysql


def write(server: MysqlServer, schema: str, first: int) -> None:
    for session, statement in writes(first):
        with server.connect(database=schema, charset="utf8mb4") as connection, connection.cursor() as cursor:
            cursor.execute(f"SET {session}, character_set_client = 'utf8mb4'")
            server.query(f"FLUSH TABLES {schema}.keyed, {schema}.keyless")
            cursor.execute(statement)


def rows(server: MysqlServer, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    with server.connect(database=schema, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        for table, columns in COLUMNS.items():
            server.query(f"FLUSH TABLES {schema}.{table}")
            cursor.execute(f"SELECT {_in_order(columns)} FROM {table}")
            found[table] = sorted(cursor.fetchall())
    return found


def _in_order(columns: list[str]) -> str:
    order = ["id", "qty", "mood", "total", "host", "day", "flag", "code", "shop", "uuid"]
    return ", ".join(name for name in order if name in columns)


def check(run: Pipeline, wanted: dict[str, list[tuple[Any, ...]]]) -> None:
    for name, uri in run.found["consolidate"]["published"].items():
        columns, found = published(uri)
        table = name.partition(".")[2]
        assert ", ".join(columns) == _in_order(COLUMNS[table])
        assert sorted(found) == wanted[table], name


@pytest.mark.slow
def test_of_touched_and_other_rows_night_after_night(
    shop: MysqlServer, schema: str, spark: SparkSession, tmp_path: Path
) -> None:
    columns = {f"{schema}.{table}": names for table, names in COLUMNS.items()}

    def night(number: int) -> Pipeline:
        return Pipeline(
            spark,
            settings_of(shop),
            tmp_path.as_uri(),
            [f"{schema}.*"],
            run_id=f"2026010{number}T000000Z-00000000",
            columns=columns,
            refresh="auto",
            changes=True,
        )

    with pytest.raises(PreflightError) as raised:
        night(1).source.preflight([f"{schema}.*"])
    refused = {problem.where.rpartition(".")[2] for problem in raised.value.problems}
    assert refused == {"half", "local", "padded", "wide", "hidden"}
    assert all("leave the column out" in problem.hint for problem in raised.value.problems)

    first = night(1)
    before = rows(shop, schema)
    first.record()
    write(shop, schema, 100)
    first.snapshot()
    write(shop, schema, 110)
    first.extract_delta()
    first.consolidate()
    check(first, before)
    second = night(2)
    wanted = rows(shop, schema)
    second.record()
    assert all(plan.base for plan in second.plans), [plan.reason for plan in second.plans]
    write(shop, schema, 120)
    second.snapshot()
    second.extract_delta()
    second.consolidate()
    check(second, wanted)
    assert read_changes(tmp_path.as_uri(), f"{schema}.keyed", columns=COLUMNS["keyed"]).position
