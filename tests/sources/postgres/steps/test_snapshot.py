"""Reads beside writers: untouched rows are read once, a shared view is one position, and doubt stops the read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import CopyMismatch, PreflightError, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.decode.rows import CopyReader, open_rows
from airflow_provider_cdc.sources.postgres.server.session import mapped_errors, query, session
from airflow_provider_cdc.sources.postgres.slots import slots, waits
from airflow_provider_cdc.sources.postgres.slots.waits import insert_end
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.log.reading import settings as settings_of

RUN_ID = "20260101T000000Z-00000000"
ROWS = 5_000
PAGE, SEGMENT = 8192, 2**24


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> PostgresSource:
    postgres.query(
        f"""
        CREATE TABLE stock (id int PRIMARY KEY, left_over int, note text);
        ALTER TABLE stock REPLICA IDENTITY FULL;
        INSERT INTO stock SELECT i, 0, repeat('x', 100) FROM generate_series(1, {ROWS}) i;
        CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (1000);
        CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (1000) TO (10000) PARTITION BY HASH (id);
        CREATE TABLE "parts Odd" PARTITION OF parts_high FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE parts_even PARTITION OF parts_high FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        INSERT INTO parts SELECT i, repeat('y', 100) FROM generate_series(1, {ROWS}) i;
        CREATE TABLE parent (id int); CREATE TABLE child (more int) INHERITS (parent);
        INSERT INTO parent VALUES (1), (2); INSERT INTO child VALUES (3, 3);
        CREATE TABLE nothing (id int) PARTITION BY RANGE (id);
        ANALYZE
        """,
        database=database,
    )
    return PostgresSource(settings_of(postgres, database))


def table_of(source: PostgresSource, name: str) -> Table:
    with session(source.settings) as connection:
        return read_tables(connection, [TableName("public", name)])[0]


def read(source: Source, table: Table, chunks: list[Chunk], consistency: str = "watermark") -> list[tuple[Any, ...]]:
    with source.reader(table, consistency, LockPolicy()) as reader:
        return [tuple(row.values()) for chunk in chunks for batch in reader.read(chunk) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", ["stock", "parts"])
@pytest.mark.parametrize("chunk_rows", [1, 300, 100_000])
def test_chunks_in_any_order_hold_every_row_once(source: PostgresSource, name: str, chunk_rows: int) -> None:
    table = table_of(source, name)
    chunks = source.plan_chunks(table, chunk_rows)
    assert decode(list[Chunk], encode(chunks), "") == chunks
    random.Random(chunk_rows).shuffle(chunks)
    assert Counter(row[0] for row in read(source, table, chunks)) == Counter(range(1, ROWS + 1))
    if chunk_rows == 300:
        assert 10 < len(chunks) < 40


@pytest.mark.slow
def test_rows_that_nobody_touches_are_read_once_whatever_happens_to_the_others(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    database, chance = source.settings.database, random.Random(7)
    table = table_of(source, "stock")
    chunks = source.plan_chunks(table, 100)
    chance.shuffle(chunks)
    touched: set[int] = set()
    found: list[int] = []
    for number, chunk in enumerate(chunks):
        found += [row[0] for row in read(source, table, [chunk])]
        first = chance.randrange(ROWS)
        touched |= set(range(first, first + 60))
        postgres.query(f"UPDATE stock SET left_over = 1 WHERE id BETWEEN {first} AND {first + 29}", database=database)
        postgres.query(f"DELETE FROM stock WHERE id BETWEEN {first + 30} AND {first + 59}", database=database)
        # Longer rows move elsewhere, and free places are used again.
        postgres.query(f"INSERT INTO stock SELECT {ROWS + number + 1}, 2, repeat('z', 300)", database=database)
        if number % 10 == 0:
            postgres.query("VACUUM stock", database=database)
    counts = Counter(found)
    untouched = set(range(1, ROWS + 1)) - touched
    assert len(untouched) > 1_000
    assert {key: counts[key] for key in untouched} == dict.fromkeys(untouched, 1)


def test_what_is_appended_while_the_table_is_read_lies_in_its_last_chunk(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    table = table_of(source, "stock")
    chunks = source.plan_chunks(table, 500)
    append = "INSERT INTO stock SELECT i, 1, 'new' FROM generate_series(10001, 12000) i"
    postgres.query(append, database=source.settings.database)
    assert len([row for row in read(source, table, chunks[-1:]) if row[0] > 10_000]) > 1_900


def test_a_parent_is_read_without_its_children_and_an_empty_tree_gives_no_row(source: PostgresSource) -> None:
    for name, rows in (("parent", [(1,), (2,)]), ("child", [(3, 3)]), ("nothing", [])):
        table = table_of(source, name)
        chunks = source.plan_chunks(table, 10)
        assert len(chunks) == 1
        assert read(source, table, chunks) == rows


def test_a_chunk_of_another_table_is_refused(source: PostgresSource) -> None:
    with pytest.raises(CopyMismatch, match="no partition with the OID"):
        read(source, table_of(source, "stock"), source.plan_chunks(table_of(source, "parent"), 10))


SWAPS = {
    "TRUNCATE stock": "was rewritten or truncated",
    "VACUUM FULL stock": "was rewritten or truncated",
    "ALTER TABLE stock ALTER id TYPE bigint": "the columns of the rows, or their types, differ|was rewritten",
    "ALTER TABLE stock SET UNLOGGED": "was rewritten or truncated",
    "ALTER TABLE stock RENAME TO old; CREATE TABLE stock (LIKE old)": "another table now has the name",
    "DROP TABLE stock": "does not exist",
    "ALTER TABLE stock DROP note": "does not exist",
}


@pytest.mark.parametrize("consistency", ["watermark", "exported"])
@pytest.mark.parametrize(("change", "why"), SWAPS.items())
def test_a_relation_that_lost_its_rows_places_between_chunks_stops_the_read(
    postgres: PostgresServer, source: PostgresSource, consistency: str, change: str, why: str
) -> None:
    table = table_of(source, "stock")
    first, *rest = source.plan_chunks(table, 500)
    with source.shared_reads({consistency}, LockPolicy()) as shared:
        assert read(shared, table, [first], consistency)
        postgres.query(change, database=source.settings.database)
        with pytest.raises(SchemaChanged, match=why):
            read(shared, table, rest, consistency)


def test_all_who_share_a_view_read_at_its_position(postgres: PostgresServer, source: PostgresSource) -> None:
    database, table = source.settings.database, table_of(source, "stock")
    chunks = source.plan_chunks(table, 500)
    before = [tuple(row) for row in postgres.query("SELECT * FROM stock", database=database)]
    with source.shared_reads({"exported", "watermark"}, LockPolicy()) as shared:
        assert isinstance(shared, PostgresSource)
        assert shared.view is not None
        start = shared.view.upper
        postgres.query("UPDATE stock SET left_over = 5; DELETE FROM stock WHERE id % 3 = 0", database=database)
        with shared.reader(table, "exported", LockPolicy()) as reader:
            assert reader.upper == start
        # Each in its own session, as in tasks.
        rows = [row for chunk in chunks for row in read(shared, table, [chunk], "exported")]
        assert Counter(rows) == Counter(before)
        # Otherwise, the slot would keep the log for as long as the reads take.
        assert postgres.query("SELECT 1 FROM pg_replication_slots") == []
    soon(lambda: postgres.query("SELECT 1 FROM pg_replication_slots"), [])
    assert start < Lsn.expect(source.bound_reads().upper)
    with source.share_reads(LockPolicy()) as again:
        assert again.view is not None
        assert again.view.upper > start


def test_nothing_is_held_open_for_reads_that_share_no_view(postgres: PostgresServer, source: PostgresSource) -> None:
    with source.shared_reads({"watermark"}, LockPolicy()) as shared:
        assert shared is source
        assert postgres.query("SELECT 1 FROM pg_replication_slots") == []


LEADERS = "pg_stat_activity WHERE backend_type = 'walsender'"
"""The sessions that export a snapshot."""


def test_a_leader_that_dies_takes_the_view_with_it_and_the_read_can_be_retried(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    table = table_of(source, "stock")
    chunks = source.plan_chunks(table, 500)
    with source.shared_reads({"exported"}, LockPolicy()) as shared:
        with shared.reader(table, "exported", LockPolicy()) as reader:
            assert list(reader.read(chunks[0]))
            postgres.query(f"SELECT pg_terminate_backend(pid) FROM {LEADERS}")
            # A session that has the snapshot keeps it.
            assert list(reader.read(chunks[1]))
        soon(lambda: postgres.query(f"SELECT 1 FROM {LEADERS}"), [])
        with pytest.raises(SourceUnavailable, match="exported the snapshot"):
            read(shared, table, chunks, "exported")
    with pytest.raises(SourceUnavailable, match="shared snapshot for reading"):
        read(source, table, chunks, "exported")


def test_of_some_columns_those_are_read_that_the_partitions_call_so(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    """Whatever place they have there; and of all of them it is checked that they are what they were."""
    database = source.settings.database
    postgres.query(
        "CREATE TABLE odd_one (note text, gone int, id int NOT NULL); ALTER TABLE odd_one DROP COLUMN gone; "
        "ALTER TABLE parts ATTACH PARTITION odd_one FOR VALUES FROM (10000) TO (20000); "
        "INSERT INTO parts VALUES (10007, 'odd')",
        database=database,
    )
    table = replace(table_of(source, "parts"), selection=Selection(None, ("id",)))
    chunks = source.plan_chunks(table, 300)
    assert Counter(read(source, table, chunks)) == Counter((n,) for n in (*range(1, ROWS + 1), 10007))
    postgres.query("ALTER TABLE parts RENAME COLUMN note TO other", database=database)
    with pytest.raises(SchemaChanged, match="note"):
        read(source, table, chunks)


def test_a_session_that_ends_within_a_chunk_can_be_retried(postgres: PostgresServer, source: PostgresSource) -> None:
    postgres.query(
        "INSERT INTO stock SELECT i, 1, repeat('w', 1000) FROM generate_series(10001, 60000) i",
        database=source.settings.database,
    )
    table = table_of(source, "stock")
    with source.reader(table, "watermark", LockPolicy()) as reader:
        batches = reader.read(Chunk(0, (table.details["oid"], 0)))
        next(batches)
        postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY %'")
        with pytest.raises(SourceUnavailable):
            list(batches)


def test_a_session_that_ends_between_two_chunks_can_be_retried(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    """The reason may have arrived together with the end of the last answer."""
    with open_rows(source.settings, table_of(source, "stock")) as rows:
        assert isinstance(rows, CopyReader)
        ((pid,),) = rows.ask("SELECT pg_backend_pid()::text")
        postgres.query("SELECT pg_terminate_backend(%s)", (int(pid or 0),))
        assert rows._stream.receive()
        with pytest.raises(SourceUnavailable, match="terminating"), mapped_errors("stock"):
            rows.run("BEGIN")


def test_the_bound_does_not_wait_for_transactions_that_are_open(
    postgres_factory: PostgresFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server where no other session commits, because a commit would flush the log."""
    # By itself, the server flushes what open transactions write within 15 s.
    monkeypatch.setattr(waits, "FLUSH_SECONDS", 10.0)
    server = postgres_factory({"autovacuum": "off"})
    server.query("CREATE TABLE stock (id int PRIMARY KEY, left_over int)")
    server.query("INSERT INTO stock VALUES (1, 0)")
    with server.connect(autocommit=False) as writing:
        for _ in range(3):
            writing.execute("UPDATE stock SET left_over = left_over + 1 WHERE id = 1")
            PostgresSource(settings_of(server, "postgres")).bound_reads()


@pytest.mark.slow
def test_the_bound_covers_commits_that_are_visible_before_they_are_on_disk(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    with postgres.connect(database=source.settings.database) as writing:
        writing.execute("SET synchronous_commit = off")
        for _ in range(50):
            writing.execute("UPDATE stock SET left_over = left_over + 1 WHERE id = 1")
            after = Lsn.parse(writing.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()[0][0])
            bound = source.bound_reads()
            assert insert_end(after, PAGE, SEGMENT) <= Lsn.expect(bound.upper)
            flushed = Lsn.parse(postgres.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
            assert Lsn.expect(bound.upper) <= flushed


def test_a_log_that_is_not_flushed_is_waited_for_no_longer_than_it_takes(
    postgres: PostgresServer, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "insert_end", lambda lsn, *sizes: Lsn(int(lsn) + 2**20))
    monkeypatch.setattr(waits, "FLUSH_SECONDS", 0.1)
    with pytest.raises(SourceUnavailable, match="did not write its log to disk"):
        source.bound_reads()


@given(st.integers(1, 2**40))
def test_a_page_that_holds_no_record_yet_is_not_part_of_the_log(page: int) -> None:
    start = page * PAGE
    header, other = (40, 24) if start % SEGMENT == 0 else (24, 40)
    assert insert_end(Lsn(start + header), PAGE, SEGMENT) == Lsn(start)
    # After the header comes the rest of a record that began before it and has yet to be flushed.
    for offset in (other, header + 8, 8184):
        assert insert_end(Lsn(start + offset), PAGE, SEGMENT) == Lsn(start + offset)


def test_a_log_that_ends_with_a_page_is_whole(postgres: PostgresServer, source: PostgresSource) -> None:
    """The server then reports that the next record begins after the next page's header, which it does not flush."""
    with postgres.connect() as writing:

        def insert() -> int:
            return int(Lsn.parse(writing.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()[0][0]))

        def emit(size: int) -> None:
            writing.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', %s))", [size])

        for _ in range(500):
            before = insert()
            emit(400)
            overhead = insert() - before - 400
            left = PAGE - insert() % PAGE
            # A record that spans two pages has the second page's header in its middle.
            if before // PAGE == insert() // PAGE and left > 400:
                emit(left - overhead)
            if insert() % PAGE == 24:
                # It raises an error if the wait times out.
                with session(source.settings) as connection:
                    end, _ = waits.wait(partial(query, connection), "the end of the log")
                # Sessions that begin may write to the log, too.
                if int(end) % PAGE == 0:
                    return
    pytest.fail("no record ended with its page")


@pytest.fixture
def plain(source: PostgresSource) -> Iterator[PostgresSource]:
    yield source
    source.release(RUN_ID)


def test_ddl_while_the_position_is_fixed_is_not_overlooked(
    postgres: PostgresServer, plain: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that is added after the point and before the schemas are read would be published as if it existed."""
    plans = plain.preflight(["public.stock"])
    create = slots.new_slot
    altered: list[Lsn] = []

    @contextmanager
    def create_then_alter(*arguments: Any) -> Iterator[tuple[Lsn, str]]:
        with create(*arguments) as (point, view):
            if len(altered) < limit:
                altered.append(point)
                postgres.query(f"ALTER TABLE stock ADD extra{len(altered)} int", database=plain.settings.database)
            yield point, view

    monkeypatch.setattr(slots, "new_slot", create_then_alter)
    limit = 1
    initial = plain.record_initial(plans, LockPolicy(), RUN_ID)
    assert initial.tables[0].columns[-1].name == "extra1"
    assert Lsn.expect(initial.position) > altered[0]
    plain.discard(initial.identity)
    limit = 100
    with pytest.raises(SchemaChanged, match="in each of 3 tries"):
        plain.record_initial(plans, LockPolicy(), RUN_ID)
    assert postgres.query("SELECT 1 FROM pg_replication_slots") == []
    assert postgres.query("SELECT 1 FROM pg_publication", database=plain.settings.database) == []


FOR_A_WHILE = {
    "a partition": (
        "CREATE TABLE part PARTITION OF shelf FOR VALUES IN (2); INSERT INTO shelf VALUES (2)",
        "DROP TABLE part",
        "other partitions",
    ),
    "a partition of a partition": (
        "CREATE TABLE part PARTITION OF deep FOR VALUES IN (2); INSERT INTO shelf VALUES (2)",
        "ALTER TABLE deep DETACH PARTITION part; DROP TABLE part",
        "other partitions",
    ),
    "a column": ("ALTER TABLE stock ADD extra int", "ALTER TABLE stock DROP extra", "other columns"),
    "the name": (
        "ALTER TABLE shelf RENAME TO away; CREATE TABLE shelf (id int PRIMARY KEY)",
        "DROP TABLE shelf; ALTER TABLE away RENAME TO shelf",
        "another table had its name",
    ),
}


@pytest.mark.parametrize("what", FOR_A_WHILE)
def test_what_held_at_the_position_and_neither_before_nor_after_it_is_not_overlooked(
    postgres: PostgresServer, plain: PostgresSource, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Rows of a partition that was there at the position would be missing in the copy."""
    do, undo, why = FOR_A_WHILE[what]
    database = plain.settings.database
    if what == "a partition of a partition":
        own = "CREATE TABLE deep PARTITION OF shelf FOR VALUES IN (1, 2) PARTITION BY LIST (id);"
        own += "CREATE TABLE first PARTITION OF deep FOR VALUES IN (1);"
    else:
        own = "CREATE TABLE first PARTITION OF shelf FOR VALUES IN (1);"
    postgres.query(
        f"CREATE TABLE shelf (id int PRIMARY KEY) PARTITION BY LIST (id); {own}"
        "ALTER TABLE shelf REPLICA IDENTITY FULL; ALTER TABLE first REPLICA IDENTITY FULL",
        database=database,
    )
    if what == "a partition of a partition":
        postgres.query("ALTER TABLE deep REPLICA IDENTITY FULL", database=database)
    create = slots.new_slot
    points: list[Lsn] = []

    @contextmanager
    def create_in_between(*arguments: Any) -> Iterator[tuple[Lsn, str]]:
        disturbed = len(points) < limit
        if disturbed:
            postgres.query(do, database=database)
        with create(*arguments) as (point, view):
            points.append(point)
            if disturbed:
                postgres.query(undo, database=database)
            yield point, view

    monkeypatch.setattr(slots, "new_slot", create_in_between)
    plans = plain.preflight(["public.shelf", "public.stock"])
    limit = 1
    initial = plain.record_initial(plans, LockPolicy(), RUN_ID)
    assert Lsn.expect(initial.position) == points[1]
    plain.discard(initial.identity)
    limit = 100
    with pytest.raises(SchemaChanged, match=why):
        plain.record_initial(plans, LockPolicy(), RUN_ID)
    assert postgres.query("SELECT 1 FROM pg_replication_slots") == []


def test_a_table_that_lost_what_its_plan_needs_leaves_no_slot(postgres: PostgresServer, plain: PostgresSource) -> None:
    plans = plain.preflight(["public.stock"])
    postgres.query("ALTER TABLE stock REPLICA IDENTITY DEFAULT", database=plain.settings.database)
    with pytest.raises(SchemaChanged, match=r'ALTER TABLE "public"\."stock" REPLICA'):
        plain.record_initial(plans, LockPolicy(), RUN_ID)
    drop = "ALTER TABLE stock REPLICA IDENTITY FULL, DROP CONSTRAINT stock_pkey"
    postgres.query(drop, database=plain.settings.database)
    with pytest.raises(SchemaChanged, match="lost its key"):
        plain.record_initial(plans, LockPolicy(), RUN_ID)
    assert postgres.query("SELECT 1 FROM pg_replication_slots") == []
    with pytest.raises(PreflightError):
        plain.preflight(["public.stock"], TableOptions("watermark"))


@pytest.mark.parametrize("kind", ["int", "pair"])
def test_columns_may_be_called_what_queries_call_their_parts(
    source: PostgresSource, postgres: PostgresServer, kind: str
) -> None:
    postgres.query(
        f"""CREATE TYPE pair AS (r int, w int);
        CREATE TABLE "r" (id int PRIMARY KEY, r {kind}, w int, c int, t int, names int, data int);
        ALTER TABLE "r" REPLICA IDENTITY FULL; INSERT INTO "r" VALUES (1), (2)""",
        database=source.settings.database,
    )
    table = table_of(source, "r")
    assert [row[0] for row in read(source, table, source.plan_chunks(table, 10))] == [1, 2]
