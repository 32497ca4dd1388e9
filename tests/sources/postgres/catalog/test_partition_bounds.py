"""A partitioned table can be copied as of the past only if no other partition can have been added and removed."""

from __future__ import annotations

import psycopg
import pytest

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.postgres.server.session import session
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.postgres.catalog_reading import read_tables, without_room
from tests.sources.postgres.log.reading import settings
from tests.sources.postgres.standing import RUN_ID, Kept

# The key, the bounds of the partitions, and what is tried beside them: bounds, and a row that lies in them.
REST = ("DEFAULT", "NULL")
TREES: dict[str, tuple[str, list[str], list[tuple[str, str]]]] = {
    "hash, all": (
        "HASH (k)",
        ["WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 4, REMAINDER 1)", "WITH (MODULUS 4, REMAINDER 3)"],
        [("FOR VALUES WITH (MODULUS 4, REMAINDER 1)", "1"), REST],
    ),
    "hash, in part": (
        "HASH (k)",
        ["WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 4, REMAINDER 1)"],
        [("FOR VALUES WITH (MODULUS 4, REMAINDER 3)", "")],
    ),
    "ranges, all, and the rest": (
        "RANGE (k)",
        ["FROM (MINVALUE) TO ('), ('')')", "FROM ('), ('')') TO (MAXVALUE)", "DEFAULT"],
        [("FOR VALUES FROM ('a') TO ('b')", "'a'"), REST],
    ),
    "ranges, all, but not the rest": (
        "RANGE (k)",
        ["FROM (MINVALUE) TO ('m')", "FROM ('m') TO (MAXVALUE)"],
        [REST],
    ),
    "ranges with a gap": (
        "RANGE (k)",
        ["FROM (MINVALUE) TO ('m')", "FROM ('n') TO (MAXVALUE)", "DEFAULT"],
        [("FOR VALUES FROM ('m') TO ('n')", "'m'")],
    ),
    "ranges with an end": (
        "RANGE (k)",
        ["FROM (MINVALUE) TO ('m')", "FROM ('m') TO ('n')", "DEFAULT"],
        [("FOR VALUES FROM ('x') TO ('y')", "'x'")],
    ),
    "ranges of two columns": (
        "RANGE (k, n)",
        [
            "FROM (MINVALUE, MINVALUE) TO ('TO (', 5)",
            "FROM ('TO (', 5) TO ('x', MINVALUE)",
            "FROM ('x', MINVALUE) TO (MAXVALUE, MAXVALUE)",
            "DEFAULT",
        ],
        [("FOR VALUES FROM ('a', 1) TO ('b', 1)", "'a'"), REST],
    ),
    "lists": ("LIST (k)", ["IN ('a', NULL)", "DEFAULT"], [("FOR VALUES IN ('b')", "'b'")]),
}
WITHOUT_ROOM = {"hash, all", "ranges, all, and the rest", "ranges of two columns"}


@pytest.mark.parametrize("tree", TREES)
def test_no_other_partition_can_come_and_go(tree: str, postgres: PostgresServer, database: str) -> None:
    key, partitions, others = TREES[tree]
    with postgres.connect(database=database) as connection:
        connection.execute(f"CREATE TABLE t (k text, n int DEFAULT 0) PARTITION BY {key}".encode())
        for number, bound in enumerate(partitions):
            values = bound if bound == "DEFAULT" else f"FOR VALUES {bound}"
            connection.execute(f"CREATE TABLE t{number} PARTITION OF t {values}".encode())
        found = False
        for bound, row in others:
            connection.execute("CREATE TABLE other (k text, n int DEFAULT 0)")
            if row:
                connection.execute(f"INSERT INTO other (k) VALUES ({row})".encode())
            try:
                connection.execute(f"ALTER TABLE t ATTACH PARTITION other {bound}".encode())
                found = True
            except psycopg.Error:
                pass
            connection.execute("DROP TABLE other")
    assert found == (tree not in WITHOUT_ROOM)
    with session(settings(postgres, database)) as connection:
        (table,) = read_tables(connection, [TableName("public", "t")])
        assert without_room(connection, [table]) == ({"public.t"} if tree in WITHOUT_ROOM else set())


def test_a_not_null_that_was_never_checked_leaves_room_for_rows_with_null(postgres_factory: PostgresFactory) -> None:
    """On PostgreSQL 18 the column is marked as NOT NULL although rows have a NULL."""
    server = postgres_factory(version=18)
    with server.connect() as connection:
        for statement in (
            "CREATE TABLE t (k text) PARTITION BY RANGE (k)",
            "CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (MINVALUE) TO (MAXVALUE)",
            "CREATE TABLE rest PARTITION OF t DEFAULT",
            "INSERT INTO t VALUES (NULL)",
            "ALTER TABLE t ADD CONSTRAINT there NOT NULL k NOT VALID",
            "ALTER TABLE t DETACH PARTITION rest",
            # As before. If the table counted as one without room, the rows of this partition would be missed.
            "ALTER TABLE t ATTACH PARTITION rest DEFAULT",
            "ALTER TABLE t DETACH PARTITION rest",
        ):
            connection.execute(statement.encode())
        names = [TableName("public", "t")]
        assert without_room(connection, read_tables(connection, names)) == set()
        connection.execute("ALTER TABLE t VALIDATE CONSTRAINT there")
        assert without_room(connection, read_tables(connection, names)) == {"public.t"}


def test_a_partitioned_table_has_a_past_where_no_other_partition_has_room(kept: Kept) -> None:
    kept.run(
        "CREATE TABLE tree (id int PRIMARY KEY, v text) PARTITION BY HASH (id)",
        *(f"CREATE TABLE t{n} PARTITION OF tree FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in (0, 1)),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("tree", "t0", "t1")),
    )
    kept.keep("tree")
    point = kept.here()
    kept.check(point, "tree")
    (table,) = kept.record_at(point, "tree").tables
    assert len(table.details["leaves"]) == 2
    kept.source.release(RUN_ID)
    kept.run(
        "ALTER TABLE tree DETACH PARTITION t1",
        "ALTER TABLE tree ATTACH PARTITION t1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    )
    (problem,) = kept.refusals(point, "tree")
    assert "was altered since" in problem.what
