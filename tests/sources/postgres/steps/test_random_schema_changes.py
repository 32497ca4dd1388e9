"""Random schema changes and row changes. Each table is refused, or it becomes exactly what the server has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg
import pytest

from airflow_provider_cdc.core.tables.table import Evolution, TableName
from tests.conftest import PostgresFactory
from tests.consistency.postgres.servers import ENDS
from tests.seeds import seeds
from tests.sources.postgres.standing import Kept
from tests.sources.postgres.steps.schema_nights import after_the_night, started

NAMES = ("a", "b", "c", "d", "e", "f")
TYPES = {
    "int": ("-2147483648", "2147483647", "7"),
    "bigint": ("-9223372036854775808", "5"),
    "varchar(20)": ("''", "'ä€'", "'{\"x\"}'"),
    "varchar(40)": ("''", "'NULL'"),
    "text": ("'text'", "''", "repeat(md5('x'), 200)", "repeat(md5('y'), 200)"),
    "char(4)": ("''", "'abc'"),
    "numeric(9, 2)": ("-1.25", "9999999.99", "0"),
    "numeric(12, 2)": ("-1.25", "0.01"),
    "date": ("'2026-02-28'", "'0001-01-01'"),
    "timestamp(3)": ("'2026-01-02 03:04:05.678'", "'1999-12-31'"),
    "timestamp": ("'2026-01-02 03:04:05.678901'",),
    "boolean": ("true", "false"),
    "float8": ("1.5", "'NaN'", "'-0'"),
    "mood": ("'x'", "'y'"),
}
TABLES = 10


@dataclass
class Subject:
    """A table, and its columns as they are now. The column ``id`` stays."""

    name: str
    columns: dict[str, str]


@pytest.mark.parametrize("seed", seeds())
def test_a_table_is_refused_or_right(postgres_factory: PostgresFactory, seed: int) -> None:
    drawn = random.Random(seed)
    server = postgres_factory(None, ENDS[seed % len(ENDS)])
    server.query("CREATE DATABASE evolving")
    kept = Kept(server, "evolving")
    subjects = [
        Subject(f"t{n}", {name: drawn.choice([*TYPES]) for name in drawn.sample(NAMES, 3)}) for n in range(TABLES)
    ]
    night = started(
        kept,
        [subject.name for subject in subjects],
        "CREATE TYPE mood AS ENUM ('x', 'y')",
        *(
            f"CREATE TABLE {one.name} (id int {drawn.choice(('PRIMARY KEY', 'PRIMARY KEY', 'NULL'))}, "
            f"{', '.join(f'{name} {kind}' for name, kind in one.columns.items())})"
            for one in subjects
        ),
        *(insert(drawn, one, key) for one in subjects for key in range(20)),
    )
    bases = {table.name: night.rows(table) for table in night.point.tables}
    with server.connect(database="evolving") as connection:
        for number in range(40 * TABLES):
            transaction(drawn, connection, drawn.choice(subjects), 100 + 10 * number)
    evolutions: dict[TableName, Evolution] = {}
    refused = night.asked(evolutions)
    assert all("altered" in why for why in refused.values()), (seed, refused)
    if evolutions:
        point = night.next(evolutions)
        tables = [replace(table, eras=evolutions[table.name].eras) for table in point.tables]
        rolled = after_the_night(night, point, tables, {table.name: bases[table.name] for table in tables})
        for table in tables:
            statements = [era.statement for era in table.eras]
            assert rolled[table.name] == Counter(night.rows(table)), (seed, table.name, statements)
    kept.forget()
    assert evolutions, (seed, refused)


def transaction(drawn: random.Random, connection: psycopg.Connection, one: Subject, key: int) -> None:
    """Change rows, or the columns, or both in one transaction. If the server refuses a statement, nothing changes."""
    before = dict(one.columns)
    changes: list[Callable[[], str]] = [lambda: row_change(drawn, one, key)]
    if drawn.random() < 0.08:
        changes = [lambda: altered(drawn, one)]
        while drawn.random() < 0.4:
            more = drawn.choice((lambda: altered(drawn, one), lambda: row_change(drawn, one, key)))
            changes.insert(drawn.randrange(len(changes) + 1), more)
    within = drawn.random() < 0.2
    ends = drawn.random() < 0.9
    try:
        connection.execute("BEGIN")
        if within:
            connection.execute("SAVEPOINT s")
        for change in changes:
            connection.execute(change().encode())
        if within:
            connection.execute("RELEASE s")
        connection.execute("COMMIT" if ends else "ROLLBACK")
        one.columns = one.columns if ends else before
    except psycopg.Error:
        connection.execute("ROLLBACK")
        one.columns = before


def insert(drawn: random.Random, one: Subject, key: int) -> str:
    values = [drawn.choice(("NULL", *TYPES[kind])) for kind in one.columns.values()]
    return f"INSERT INTO {one.name} ({', '.join(['id', *one.columns])}) VALUES ({', '.join([str(key), *values])})"


def row_change(drawn: random.Random, one: Subject, key: int) -> str:
    kind, old = drawn.random(), drawn.randrange(20)
    if kind < 0.3 or not one.columns:
        return insert(drawn, one, key)
    if kind < 0.4:
        return f"DELETE FROM {one.name} WHERE id = {old}"
    name = drawn.choice([*one.columns])
    value = drawn.choice(("NULL", *TYPES[one.columns[name]]))
    return f"UPDATE {one.name} SET {name} = {value} WHERE id IN ({old}, {old + 1})"


def altered(drawn: random.Random, one: Subject) -> str:
    """An ALTER TABLE. The columns of the subject become those after it."""
    free = [name for name in NAMES if name not in one.columns]
    what = drawn.random()
    if what < 0.35 and free:
        name, kind = drawn.choice(free), drawn.choice([*TYPES])
        default = drawn.choice(("", " DEFAULT NULL", *(f" DEFAULT {value}" for value in TYPES[kind])))
        one.columns = {**one.columns, name: kind}
        return f"ALTER TABLE {one.name} ADD {name} {kind}{default}"
    if not one.columns:
        return f"ALTER TABLE {one.name} SET (fillfactor = 90)"
    name = drawn.choice([*one.columns])
    if what < 0.55:
        kind = one.columns[name]
        rest = {other: kind for other, kind in one.columns.items() if other != name}
        if drawn.random() < 0.3:
            one.columns = {**rest, name: kind}
            return f"ALTER TABLE {one.name} DROP {name}, ADD {name} {kind} DEFAULT {drawn.choice(TYPES[kind])}"
        one.columns = rest
        return f"ALTER TABLE {one.name} DROP {name}"
    if what < 0.75 and free:
        new = drawn.choice(free)
        one.columns = {new if other == name else other: kind for other, kind in one.columns.items()}
        return f"ALTER TABLE {one.name} RENAME {name} TO {new}"
    if what < 0.85:
        return f"ALTER TABLE {one.name} ALTER {name} SET DEFAULT {drawn.choice(TYPES[one.columns[name]])}"
    kind = drawn.choice([*TYPES])
    one.columns = {**one.columns, name: kind}
    return f"ALTER TABLE {one.name} ALTER {name} TYPE {kind}"
