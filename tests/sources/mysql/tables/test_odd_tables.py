"""The widest possible tables, tables that were altered in place, and complete runs over rows of all types."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_cdc.core.tables.table import Table
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published
from tests.sources.mysql.decode.reading import decode, same, select, split
from tests.sources.mysql.decode.row_images import RowsEvent, describe, logged, settings
from tests.sources.mysql.values import CASES, create_table, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_COLUMNS = 1017
"""InnoDB's limit."""

_NARROW = {
    "tinyint": ("7", "-128"),
    "date": ("'2024-02-29'", "'0001-01-01'"),
    "bit(3)": ("5", "0"),
    "year": ("2155", "0"),
    "varchar(1)": ("'ü'", "''"),
    "time": ("'-838:59:59'", "'00:00:01'"),
    "enum('a','b')": ("'b'", "'a'"),
    "binary(2)": ("x'6100'", "x''"),
    "decimal(5,2) unsigned": ("999.99", "0"),
    "smallint unsigned": ("65535", "0"),
}


def create_widest(server: MysqlServer, schema: str) -> list[str]:
    """Create ``t``; returns SQL of values for 40 rows."""
    kinds = [list(_NARROW)[number % len(_NARROW)] for number in range(MOST_COLUMNS - 1)]
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    server.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, {columns})")
    chance = random.Random(5)
    return [f"({row}, {', '.join(chance.choice((*_NARROW[kind], 'NULL')) for kind in kinds)})" for row in range(40)]


@pytest.mark.slow
def test_as_many_columns_as_a_table_can_have(mysql: MysqlServer, schema: str) -> None:
    rows = create_widest(mysql, schema)
    table = describe(mysql, schema, "t")
    assert len(table.columns) == MOST_COLUMNS
    inserted = images(table, logged(mysql, schema, [f"INSERT INTO t VALUES {', '.join(rows)}"]))
    selected = select(mysql, table)
    assert selected.num_rows == 40
    assert {selected[name].null_count > 0 for name in selected.column_names[1:]} == {True}
    assert same(decode(table, inserted), selected)
    updated = images(table, logged(mysql, schema, ["UPDATE t SET c1015 = NULL, c0 = 1"]))
    assert same(decode(table, updated[1::2]), select(mysql, table))
    assert same(decode(table, updated[::2]), selected)


def images(table: Table, events: list[RowsEvent]) -> list[bytes]:
    return [image for event in events for image in split(table, event.body)]


@pytest.mark.parametrize("many", [1, 9])
def test_rows_of_every_version_of_a_table_that_was_altered_in_place(mysql: MysqlServer, schema: str, many: int) -> None:
    """A row keeps the layout with which it was written; columns that were added since have their defaults."""
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, a varchar(9), b int NOT NULL, g int AS (b + 1) VIRTUAL)")
    number = 0
    for version in range(many):
        for _ in range(3):
            number += 1
            mysql.query(f"INSERT INTO {schema}.t (id, a, b) VALUES ({number}, 'v{version}', {number})")
        for change in (
            f"ADD COLUMN n{version} decimal(9,3) NOT NULL DEFAULT 7.125 FIRST",
            f"ADD COLUMN t{version} varchar(20) CHARACTER SET latin1 DEFAULT 'é' AFTER a",
            f"ADD COLUMN gone{version} int DEFAULT 5",
            f"DROP COLUMN gone{version}",
            f"ADD COLUMN i{version} timestamp(3) NULL DEFAULT '2024-01-01 00:00:00.5' INVISIBLE AFTER b",
            f"RENAME COLUMN i{version} TO j{version}",
        ):
            mysql.query(f"ALTER TABLE {schema}.t {change}, ALGORITHM=INSTANT")
    table = describe(mysql, schema, "t")
    assert [column.name for column in table.columns][-2:] == ["j0", "g"]
    assert len(table.columns) == 4 + 3 * many
    selected = select(mysql, table)
    assert selected["t0"].to_pylist() == ["é"] * number
    names = ", ".join(column.name for column in table.columns)
    plain = mysql.query(f"SELECT {names} FROM {schema}.t ORDER BY id")
    ours = [
        tuple(value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value for value in row)
        for row in zip(*(column.to_pylist() for column in selected.columns), strict=True)
    ]
    assert ours == plain
    updated = images(table, logged(mysql, schema, ["UPDATE t SET b = b + 100"]))
    assert same(decode(table, updated[::2]), selected)
    again = select(mysql, table)
    assert same(decode(table, updated[1::2]), again)
    deleted = images(table, logged(mysql, schema, ["DELETE FROM t"]))
    assert same(decode(table, deleted), again)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["PRIMARY KEY (id)", "INDEX (id)"], ids=["keyed", "keyless"])
def test_a_run_over_every_type_puts_back_what_was_changed(
    mysql: MysqlServer, schema: str, spark: SparkSession, tmp_path: Path, key: str
) -> None:
    cases = [case for case in CASES if not case.declaration.startswith("decimal")] + list(CASES[20:30])
    names = []
    for number, start in enumerate(range(0, len(cases), 40)):
        some = cases[start : start + 40]
        names.append(f"t{number}")
        mysql.query(create_table(f"{schema}.t{number}", some).replace("id int PRIMARY KEY", f"id int NOT NULL, {key}"))
        rows = ", ".join(f"({row}, {', '.join(values)})" for row, values in enumerate(rows_of(some)))
        logged(mysql, schema, [f"INSERT INTO t{number} VALUES {rows}"])
    widest = create_widest(mysql, schema)
    if key.startswith("INDEX"):
        mysql.query(f"ALTER TABLE {schema}.t DROP PRIMARY KEY")
    mysql.query(f"INSERT INTO {schema}.t VALUES {', '.join(widest)}")
    names.append("t")
    tables = {name: describe(mysql, schema, name) for name in names}
    expected = {name: _bits(select(mysql, table).sort_by("id").to_pylist()) for name, table in tables.items()}

    run = Pipeline(spark, settings(mysql), tmp_path.as_uri(), [f"{schema}.*"])
    run.record()
    for name in names:
        mysql.query(f"UPDATE {schema}.{name} SET id = id + 1000 WHERE id % 2")
        mysql.query(f"INSERT INTO {schema}.{name} (id) VALUES (5000)")
    run.snapshot()
    for name in names:
        mysql.query(f"UPDATE {schema}.{name} SET c0 = NULL, c1 = NULL WHERE id % 3 = 0")
        mysql.query(f"DELETE FROM {schema}.{name} WHERE id % 3 = 1")
    run.extract_delta()
    assert all(run.found["extract_delta"]["keys"].values())
    done = run.consolidate()
    for name in names:
        columns, copied = published(done["published"][f"{schema}.{name}"])
        found = [dict(zip(columns, row, strict=True)) for row in copied]
        assert _bits(sorted(found, key=lambda row: row["id"])) == expected[name]


def _bits(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as text in which -0.0 differs from 0.0. Durations come back from Parquet unchanged."""
    return [repr(row) for row in rows]
