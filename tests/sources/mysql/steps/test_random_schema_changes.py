"""Random schema changes and row changes. Each table is refused, or it becomes exactly what the server has."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_cdc.core.tables.table import Evolution, TableName
from harness.mysql_server import MysqlServer
from tests.seeds import seeds
from tests.sources.mysql.steps.schema_nights import after_the_night, started

NAMES = ("a", "b", "c", "d", "e", "f")
TYPES = {
    "TINYINT": ("-128", "127", "0"),
    "INT": ("-2147483648", "2147483647", "-1", "7"),
    "INT UNSIGNED": ("4294967295", "0", "7"),
    "BIGINT": ("-9223372036854775808", "5"),
    "VARCHAR(20)": ("''", "'ä€'", "'twenty characters !!'"),
    "VARCHAR(40)": ("''", "'x'"),
    "VARCHAR(300)": ("''", "'long'"),
    "CHAR(4)": ("''", "'abc'"),
    "ENUM('x', 'y')": ("'x'", "'y'"),
    "ENUM('x', 'y', 'z')": ("'x'", "'y'"),
    "DECIMAL(9, 2)": ("-1.25", "9999999.99", "0"),
    "DATE": ("'2026-02-28'", "'1000-01-01'"),
    "DOUBLE": ("1.5", "-0.0"),
    "TEXT": ("'text'", "''"),
}
TABLES = 10


@pytest.mark.parametrize("seed", seeds())
def test_a_table_is_refused_or_right(mysql: MysqlServer, schema: str, seed: int) -> None:
    drawn = random.Random(seed)
    tables = [f"t{number}" for number in range(TABLES)]
    columns = {t: {name: drawn.choice([*TYPES]) for name in drawn.sample(NAMES, 3)} for t in tables}
    night = started(
        mysql,
        schema,
        *(
            f"CREATE TABLE {t} (id INT {drawn.choice(('PRIMARY KEY', 'PRIMARY KEY', 'NULL'))}, "
            f"{', '.join(f'{name} {kind}' for name, kind in columns[t].items())})"
            for t in tables
        ),
        *(insert(drawn, t, columns[t], key) for t in tables for key in range(20)),
    )
    bases = {table.name: (table, night.rows(table)) for table in night.point.tables}
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        for number in range(40 * TABLES):
            t = drawn.choice(tables)
            if drawn.random() < 0.08:
                columns[t] = altered(drawn, cursor, t, columns[t])
            elif drawn.random() < 0.02:
                cursor.execute("FLUSH BINARY LOGS")
            else:
                cursor.execute(row_change(drawn, t, columns[t], 100 + number))
    evolutions: dict[TableName, Evolution] = {}
    refused = night.asked(evolutions)
    carried = [
        replace(table, columns=evolutions[name].columns, eras=evolutions[name].eras)
        for name, (table, _) in bases.items()
        if name in evolutions and name.name not in refused
    ]
    rolled = after_the_night(night, carried, {table.name: bases[table.name][1] for table in carried})
    for table in carried:
        assert rolled[table.name] == Counter(night.rows(table)), (seed, table.name, [e.statement for e in table.eras])
    assert carried, (seed, refused)


def insert(drawn: random.Random, t: str, columns: dict[str, str], key: int) -> str:
    values = [drawn.choice(("NULL", *TYPES[kind])) for kind in columns.values()]
    return f"INSERT INTO {t} ({', '.join(['id', *columns])}) VALUES ({', '.join([str(key), *values])})"


def row_change(drawn: random.Random, t: str, columns: dict[str, str], key: int) -> str:
    kind, old = drawn.random(), drawn.randrange(20)
    if kind < 0.3 or not columns:
        return insert(drawn, t, columns, key)
    if kind < 0.4:
        return f"DELETE FROM {t} WHERE id = {old}"
    name = drawn.choice([*columns])
    value = drawn.choice(("NULL", *TYPES[columns[name]]))
    return f"UPDATE {t} SET {name} = {value} WHERE id IN ({old}, {old + 1})"


def altered(drawn: random.Random, cursor: Any, t: str, columns: dict[str, str]) -> dict[str, str]:
    """Alter the table, and return its columns afterwards. The columns stay as they are if the server refuses."""
    after = dict(columns)
    parts: list[str] = []
    for _ in range(drawn.choice((1, 1, 2))):
        free = [name for name in NAMES if name not in after and name not in columns]
        kept = [name for name in after if name in columns and not any(name in part.split() for part in parts)]
        what = drawn.random()
        if what < 0.4 and free:
            name, kind = free[0], drawn.choice([*TYPES])
            place = drawn.choice(("", " FIRST", " AFTER id"))
            default = drawn.choice(("", " DEFAULT NULL", f" DEFAULT {drawn.choice(TYPES[kind])}"))
            parts.append(f"ADD {name} {kind}{'' if kind == 'TEXT' else default}{place}")
            after[name] = kind
        elif what < 0.6 and kept:
            parts.append(f"DROP COLUMN {kept[0]}")
            del after[kept[0]]
        elif what < 0.8 and kept and free:
            parts.append(f"RENAME COLUMN {kept[0]} TO {free[0]}")
            after = {free[0] if name == kept[0] else name: kind for name, kind in after.items()}
        elif kept:
            kind = drawn.choice([*TYPES])
            parts.append(f"MODIFY {kept[0]} {kind}")
            after[kept[0]] = kind
    if not parts:
        return columns
    try:
        cursor.execute(f"ALTER TABLE {t} {', '.join(parts)}")
    except Exception:
        return columns
    return after
