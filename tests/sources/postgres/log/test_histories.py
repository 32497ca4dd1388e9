"""Random histories on a real server: the net change undoes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.tables.net_change import Change, rewind, rewind_counts
from airflow_provider_cdc.sources.postgres.log import segments
from harness.postgres_server import PostgresServer
from tests.seeds import examples
from tests.sources.changes import Row, key
from tests.sources.postgres.log.reading import LogReading

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

DATABASE = "histories"
IDS = st.integers(1, 6)
LETTERS = st.sampled_from("xyX")
WIDE = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 200) g)"
VALUES = st.sampled_from(["NULL", "''", "'a'", "'é'", "repeat('x', 300)", WIDE])

STATEMENTS = st.one_of(
    st.builds(
        "INSERT INTO a VALUES ({}, '{}', {}, 0) ON CONFLICT DO NOTHING".format, IDS, st.sampled_from("xyX"), VALUES
    ),
    st.builds("INSERT INTO a VALUES ({0}, 'x', {1}, 1) ON CONFLICT (id, s) DO UPDATE SET v = {1}".format, IDS, VALUES),
    st.builds("UPDATE a SET v = {} WHERE id = {}".format, VALUES, IDS),
    st.builds("UPDATE a SET n = n + 1 WHERE id < {}".format, IDS),
    st.builds("UPDATE a SET id = id + {} WHERE id > {}".format, st.sampled_from([6, -6]), st.sampled_from([6, 0])),
    st.builds("DELETE FROM a WHERE id = {}".format, IDS),
    st.builds("INSERT INTO k VALUES ({}, {})".format, IDS, VALUES),
    st.builds("INSERT INTO k SELECT id, v FROM a WHERE id < {}".format, IDS),
    st.builds("UPDATE k SET id = id + 1 WHERE id = {}".format, IDS),
    st.builds("UPDATE k SET v = {} WHERE id = {}".format, VALUES, IDS),
    st.builds("DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM k WHERE id = {})".format, IDS),
    st.builds("INSERT INTO p VALUES ({}, {}) ON CONFLICT DO NOTHING".format, IDS, VALUES),
    st.builds(
        "UPDATE p SET id = id + 3 WHERE id = {} AND NOT EXISTS (SELECT FROM p q WHERE q.id = p.id + 3)".format, IDS
    ),
    st.builds("UPDATE p SET v = {} WHERE id = {}".format, VALUES, IDS),
    st.builds("DELETE FROM p WHERE id = {}".format, IDS),
    st.builds("INSERT INTO other VALUES ({})".format, IDS),
    st.sampled_from(["SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"]),
)
TRANSACTIONS = st.tuples(
    st.sampled_from(["SELECT 1", "SET synchronous_commit = off", "VACUUM a", "CHECKPOINT", "VACUUM FREEZE k"]),
    st.lists(STATEMENTS, min_size=1, max_size=6),
    st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK", "prepared", "prepared, rolled back"]),
)

Transaction = tuple[str, list[str], str]


@pytest.fixture(scope="module")
def db(postgres: PostgresServer) -> Iterator[Connection]:
    postgres.query(f"CREATE DATABASE {DATABASE}")
    with postgres.connect(database=DATABASE) as connection:
        for statement in [
            "CREATE TABLE a (id int, s text, v text, n int, PRIMARY KEY (id, s))",
            "CREATE TABLE k (id int, v text)",
            "CREATE TABLE other (id int)",
            "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (3)",
            "CREATE TABLE p2 PARTITION OF p DEFAULT",
            *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("a", "k", "p", "p1", "p2")),
        ]:
            connection.execute(statement.encode())
        yield connection
    postgres.drop_database(DATABASE)


def apply(connection: Connection, transaction: Transaction) -> None:
    first, statements, end = transaction
    connection.execute(first.encode())
    connection.execute("BEGIN")
    saved = False
    for statement in statements:
        if statement in ("ROLLBACK TO s", "RELEASE s") and not saved:
            continue
        saved = saved or statement == "SAVEPOINT s"
        saved = saved and statement != "RELEASE s"
        try:
            connection.execute("SAVEPOINT each")
            connection.execute(statement.encode())
        except psycopg.errors.UniqueViolation:
            connection.execute("ROLLBACK TO each")
    if end.startswith("prepared"):
        connection.execute("PREPARE TRANSACTION 'h'")
        connection.execute("ROLLBACK PREPARED 'h'" if "rolled" in end else "COMMIT PREPARED 'h'")
    else:
        connection.execute(end.encode())
    connection.execute("RESET synchronous_commit")


def rows_of(connection: Connection) -> tuple[dict[bytes, Row], dict[bytes, Row], Counter[Row]]:
    a = {key(row[0], row[1]): row for row in connection.execute("SELECT * FROM a").fetchall()}
    p = {key(row[0]): row for row in connection.execute("SELECT * FROM p").fetchall()}
    return a, p, Counter(connection.execute("SELECT * FROM k").fetchall())


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, segments.FIRST_PART])
@given(before=st.lists(TRANSACTIONS, max_size=4), within=st.lists(TRANSACTIONS, max_size=8))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_net_change_undoes_the_history(
    part: int,
    postgres: PostgresServer,
    db: Connection,
    monkeypatch: pytest.MonkeyPatch,
    before: list[Transaction],
    within: list[Transaction],
) -> None:
    if part == 1:
        monkeypatch.setattr(segments, "FIRST_PART", 1)
        monkeypatch.setattr(segments, "PART_BYTES", 1)
        monkeypatch.setattr(segments, "NET_BYTES", 400)
        monkeypatch.setattr(segments, "_decoded_again", lambda *arguments: 0)
    for name in ("a", "k", "p", "other"):
        db.execute(f"DELETE FROM {name}".encode())
    for transaction in before:
        apply(db, transaction)
    a, p, k = rows_of(db)
    reading = LogReading(postgres, DATABASE, "a", "p", "k")
    try:
        for transaction in within:
            apply(db, transaction)
        window = reading.read()
    finally:
        reading.close()
    a_after, p_after, k_after = rows_of(db)

    def changes(name: str) -> dict[bytes, Change[Row]]:
        return {key: Change(row, None) for key, row in window.before.get(name, {}).items()}

    assert rewind(a_after, changes("a")) == a
    assert rewind(p_after, changes("p")) == p
    assert rewind_counts(k_after, window.counts.get("k", Counter())) == k
