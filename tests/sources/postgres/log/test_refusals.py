"""Events on a real server that break the proof during a run: the log shows them, and reading stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_cdc.errors import CdcError, ConfigurationError, SchemaChanged
from harness.postgres_server import PostgresServer
from tests.sources.changes import key
from tests.sources.postgres.log.reading import LogReading

TABLES = [
    "CREATE TYPE mood AS ENUM ('a', 'b')",
    "CREATE TABLE a (id int PRIMARY KEY, v varchar(20), n numeric(9,2), m mood)",
    "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE w (id int PRIMARY KEY, a text, b text) PARTITION BY RANGE (id)",
    "CREATE TABLE w1 (b text, gone int, a text, id int NOT NULL)",
    "ALTER TABLE w1 DROP gone",
    "ALTER TABLE w ATTACH PARTITION w1 DEFAULT",
    *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("a", "p", "p1", "p2", "w", "w1")),
    "INSERT INTO a VALUES (1, 'one', 1, 'a')",
    "INSERT INTO p VALUES (1, 'one'), (11, 'eleven')",
]
CHANGE = "UPDATE a SET id = 2"
CHANGE_PARTITION = "UPDATE p SET v = 'x' WHERE id = 1"

OTHERS = "columns have changed"
REFUSED: dict[str, tuple[list[str], type[CdcError], str]] = {
    "a column was added": (["ALTER TABLE a ADD w int", CHANGE], SchemaChanged, rf"public\.a at .*{OTHERS} \(w\)"),
    "a column was added and dropped": (
        ["ALTER TABLE a ADD w int", CHANGE, "ALTER TABLE a DROP w"], SchemaChanged, rf"{OTHERS} \(w\)",
    ),
    "a column was dropped": (["ALTER TABLE a DROP v", CHANGE], SchemaChanged, rf"{OTHERS} \(v\)"),
    "a column was renamed": (["ALTER TABLE a RENAME v TO w", CHANGE], SchemaChanged, OTHERS),
    "a column was renamed and back": (
        ["ALTER TABLE a RENAME v TO w", CHANGE, "ALTER TABLE a RENAME w TO v"], SchemaChanged, OTHERS,
    ),
    "a column has another type": (["ALTER TABLE a ALTER v TYPE text", CHANGE], SchemaChanged, rf"{OTHERS} \(v\)"),
    "a column has another length": (
        ["ALTER TABLE a ALTER v TYPE varchar(30)", CHANGE], SchemaChanged, rf"{OTHERS} \(v\)",
    ),
    "a number has another scale": (
        ["ALTER TABLE a ALTER n TYPE numeric(9,3)", CHANGE], SchemaChanged, rf"{OTHERS} \(n\)",
    ),
    "the table was renamed": (
        ["ALTER TABLE a RENAME TO b", "UPDATE b SET id = 2"], SchemaChanged, "now called public.b",
    ),
    "the table has another schema": (
        ["CREATE SCHEMA s", "ALTER TABLE a SET SCHEMA s", "UPDATE s.a SET id = 2"], SchemaChanged, "now called s.a",
    ),
    "the table was replaced": (
        ["CREATE TABLE b (LIKE a)", "ALTER TABLE a RENAME TO old", "ALTER TABLE b RENAME TO a",
         "ALTER TABLE a REPLICA IDENTITY FULL", "ALTER PUBLICATION {slot} ADD TABLE a", "INSERT INTO a VALUES (5)"],
        SchemaChanged, "another table now has the name",
    ),
    "TRUNCATE": (["TRUNCATE a"], SchemaChanged, r"public\.a at .*TRUNCATE"),
    "TRUNCATE of several": (["CREATE TABLE b (id int)", "TRUNCATE b, a"], SchemaChanged, "TRUNCATE"),
    "TRUNCATE of a partitioned table": (["TRUNCATE p"], SchemaChanged, r"public\.p at .*TRUNCATE"),
    "the replica identity was taken away": (
        ["ALTER TABLE a REPLICA IDENTITY DEFAULT", CHANGE], SchemaChanged, "REPLICA IDENTITY FULL",
    ),
    "the replica identity was taken away for a moment": (
        ["ALTER TABLE a REPLICA IDENTITY NOTHING", "INSERT INTO a VALUES (7)", "ALTER TABLE a REPLICA IDENTITY FULL"],
        SchemaChanged, "REPLICA IDENTITY FULL",
    ),
    "the replica identity of a partition was taken away": (
        ["ALTER TABLE p1 REPLICA IDENTITY DEFAULT", "DELETE FROM p", "ALTER TABLE p1 REPLICA IDENTITY FULL"],
        SchemaChanged, r"public\.p, partition public\.p1",
    ),
    "the publication tells of the root": (
        ["ALTER PUBLICATION {slot} SET (publish_via_partition_root = true)", "ALTER PUBLICATION {slot} ADD TABLE p",
         CHANGE_PARTITION],
        ConfigurationError, "publishes the partitioned table as a whole",
    ),
    "TRUNCATE of a partition": (["TRUNCATE p2"], SchemaChanged, r"public\.p at .*TRUNCATE"),
    "columns were swapped for a while": (
        ["ALTER TABLE w RENAME a TO x", "ALTER TABLE w RENAME b TO a", "ALTER TABLE w RENAME x TO b",
         "INSERT INTO w VALUES (2, 'a', 'b')",
         "ALTER TABLE w RENAME a TO x", "ALTER TABLE w RENAME b TO a", "ALTER TABLE w RENAME x TO b"],
        SchemaChanged, "their order",
    ),
}  # fmt: skip


@pytest.fixture
def followed(postgres: PostgresServer, database: str) -> Iterator[LogReading]:
    with postgres.connect(database=database) as connection:
        for statement in TABLES:
            connection.execute(statement.encode())
    reading = LogReading(postgres, database, "a", "p", "w")
    yield reading
    reading.close()


@pytest.mark.parametrize("what", REFUSED)
def test_what_stops_the_run(followed: LogReading, what: str) -> None:
    statements, error, text = REFUSED[what]
    with followed.server.connect(database=followed.database) as connection:
        connection.execute("UPDATE a SET v = 'y'")
        for statement in statements:
            connection.execute(statement.format(slot=followed.slot).encode())
    with pytest.raises(error, match=text):
        followed.read()


HARMLESS: dict[str, list[str]] = {
    "an index and a constraint": [
        "CREATE INDEX ON a (v)", CHANGE, "ALTER TABLE a ADD CHECK (id > 0)", "UPDATE a SET id = 3", "ANALYZE a",
    ],
    "a default, statistics, storage": [
        "ALTER TABLE a ALTER v SET DEFAULT 'x'", "ALTER TABLE a ALTER v SET STATISTICS 10",
        "ALTER TABLE a ALTER v SET STORAGE EXTERNAL", CHANGE, "UPDATE a SET id = 3",
    ],
    "VACUUM FULL and CLUSTER": ["VACUUM FULL a", CHANGE, "CLUSTER a USING a_pkey", "UPDATE a SET id = 3"],
    "another label of an enum": ["ALTER TYPE mood ADD VALUE 'c'", "UPDATE a SET id = 3, m = 'c'"],
    "DDL of another table": [
        "CREATE TABLE b (id int)", "ALTER TABLE b ADD c int", "DROP TABLE b", CHANGE, "UPDATE a SET id = 3",
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", HARMLESS)
def test_what_does_not_matter_to_the_log(followed: LogReading, what: str) -> None:
    """A rewrite of the table matters only to readers of its blocks, which notice it."""
    followed.execute(*HARMLESS[what])
    befores = followed.read().before["a"]
    assert next(row for row in befores.values() if row is not None)[:2] == (1, "one")
    assert befores.keys() >= {b"\1\1\0\0\0", b"\1\3\0\0\0"}


def test_rows_that_move_to_a_partition_that_was_not_there(followed: LogReading) -> None:
    """The log shows that rows leave a partition, and nothing of what happens where they go."""
    followed.execute(
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
        "UPDATE p SET id = 21 WHERE id = 1",
        "UPDATE p SET v = 'later' WHERE id = 21",
        "INSERT INTO p VALUES (22, 'new')",
        "DELETE FROM p WHERE id = 22",
        "UPDATE p SET id = 2 WHERE id = 21",
        "CREATE TABLE p4 (v text, id int PRIMARY KEY)",
        "INSERT INTO p4 VALUES ('loaded', 31)",
        "ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (30) TO (40)",
        "UPDATE p SET v = 'x' WHERE id = 31",
    )
    assert followed.read().before == {"p": {key(1): (1, "one"), key(2): None}}
