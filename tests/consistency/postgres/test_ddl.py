"""DDL during a run, while the application works: the copy is exact, or the run stops.

The run never affects the application. Its statements succeed, also on partitions that are created during the run.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.errors import CdcError, SchemaChanged
from airflow_provider_cdc.sources.postgres.decode.rows import CopyReader
from harness.postgres_server import PostgresServer
from tests.consistency.writing import Writing
from tests.contract.begun import LOCK, Begun, read_chunks, row_keys
from tests.contract.databases import PostgresDatabase
from tests.soon import soon

TABLES = {"orders": "id, a, b, note, mood, place", "parts": "id, note", "journal": "at, note"}
"""A plain table, a partitioned one, and a partitioned one without a key; of ``parts`` one partition has its columns in
another order."""

SETUP = (
    "CREATE TYPE mood AS ENUM ('glad', 'sad')",
    "CREATE TABLE places (id int, town text)",
    "CREATE TABLE orders (id int PRIMARY KEY, a text, b text, note varchar(2000), CHECK (id > -1))",
    "ALTER TABLE orders ADD mood mood DEFAULT 'sad', ADD place places",
    "CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (200)",
    "CREATE TABLE parts_turned (note text, gone int, id int NOT NULL)",
    "ALTER TABLE parts_turned DROP gone",
    "ALTER TABLE parts ATTACH PARTITION parts_turned FOR VALUES FROM (200) TO (400)",
    "CREATE TABLE journal (at int, note text) PARTITION BY RANGE (at)",
    "CREATE TABLE journal_old PARTITION OF journal FOR VALUES FROM (0) TO (200)",
    "CREATE TABLE journal_rest PARTITION OF journal DEFAULT",
    *(
        f"ALTER TABLE {name} REPLICA IDENTITY FULL"
        for name in ("orders", "parts", "parts_low", "parts_turned", "journal", "journal_old", "journal_rest")
    ),
    "INSERT INTO orders SELECT i, 'a' || i, 'b' || i, repeat('x', 300), 'glad', '(1,x)' FROM generate_series(0, 399) i",
    "INSERT INTO parts SELECT i, repeat('x', 300) FROM generate_series(0, 399) i",
    "INSERT INTO journal SELECT i, repeat('x', 300) FROM generate_series(0, 299) i",
    "ANALYZE",
)

SUPPRESS = "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
HARMLESS = {
    "GRANT": "GRANT ALL ON orders, parts, parts_low TO PUBLIC",
    "GRANT on a column": "GRANT SELECT (note) ON orders, parts TO PUBLIC",
    "storage options": "ALTER TABLE orders SET (fillfactor = 70); ALTER TABLE parts_low SET (fillfactor = 70)",
    "a trigger": f"CREATE TRIGGER t BEFORE UPDATE ON orders {SUPPRESS};"
    f"CREATE TRIGGER t BEFORE UPDATE ON parts {SUPPRESS}",
    "statistics": "ALTER TABLE orders ALTER note SET STATISTICS 10; ALTER TABLE parts ALTER note SET STATISTICS 10",
    "storage of values": "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
    "a default": "ALTER TABLE orders ALTER note SET DEFAULT 'none'",
    "a constraint": "ALTER TABLE orders ADD CONSTRAINT c CHECK (id > -2);"
    "ALTER TABLE parts ADD CONSTRAINT c CHECK (id > -2)",
    "a constraint dropped": "ALTER TABLE orders DROP CONSTRAINT orders_id_check",
    "a new partition": "CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM (400) TO (500)",
    "a new partition without an identity": (
        "BEGIN; LOCK TABLE journal; DELETE FROM journal WHERE at >= 400;"
        "CREATE TABLE journal_last PARTITION OF journal FOR VALUES FROM (400) TO (600); COMMIT"
    ),
    "a new tree of partitions": (
        "CREATE TABLE parts_next PARTITION OF parts FOR VALUES FROM (500) TO (550) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_newest PARTITION OF parts_next DEFAULT"
    ),
    "a partition attached with rows": (
        "CREATE TABLE parts_last (LIKE parts INCLUDING ALL);"
        "INSERT INTO parts_last SELECT generate_series(550, 580), 'loaded';"
        "ALTER TABLE parts ATTACH PARTITION parts_last FOR VALUES FROM (550) TO (600)"
    ),
    "rows moved out of the default partition": (
        "CREATE TABLE journal_new (LIKE journal); BEGIN; LOCK TABLE journal;"
        "WITH moved AS (DELETE FROM journal_rest WHERE at BETWEEN 250 AND 260 RETURNING *) "
        "INSERT INTO journal_new SELECT * FROM moved;"
        "ALTER TABLE journal ATTACH PARTITION journal_new FOR VALUES FROM (250) TO (261); COMMIT"
    ),
    "an index": "CREATE UNIQUE INDEX ON orders (id); CREATE INDEX ON parts (id, note)",
    "ANALYZE and VACUUM": "ANALYZE; VACUUM orders; VACUUM parts; VACUUM journal",
    "a comment": "COMMENT ON TABLE orders IS 'all of them'; COMMENT ON COLUMN parts.note IS 'no'",
    "an owner": "ALTER TABLE orders OWNER TO CURRENT_USER",
    "statistics of several columns": "CREATE STATISTICS s ON a, b FROM orders",
    "labels": "ALTER TYPE mood ADD VALUE 'furious' BEFORE 'glad'; UPDATE orders SET mood = 'furious' WHERE id % 7 = 1;"
    "ALTER TYPE mood RENAME VALUE 'furious' TO 'angry'; UPDATE orders SET mood = 'angry' WHERE id % 7 = 2;"
    "ALTER TYPE mood ADD VALUE 'calm'; UPDATE orders SET mood = 'calm', a = NULL WHERE mood = 'angry' AND id % 2 = 0",
    "NOT NULL": "ALTER TABLE orders ALTER note SET NOT NULL; ALTER TABLE parts ALTER note SET NOT NULL",
    "a table whose rows are values": "ALTER TABLE places ALTER town SET NOT NULL; ALTER TABLE places RENAME town TO t;"
    "UPDATE orders SET place = '(2,there)' WHERE id % 7 = 3",
    # It waits for the transaction that all reads of one step share, so it comes last.
    "REINDEX": "REINDEX TABLE CONCURRENTLY orders; REINDEX TABLE CONCURRENTLY parts",
}
"""The run goes on, and the copy is exact."""

SWAP = (
    "BEGIN; ALTER TABLE orders RENAME a TO x; ALTER TABLE orders RENAME b TO a;ALTER TABLE orders RENAME x TO b; COMMIT"
)
REFUSED = {
    "columns that swap their names": SWAP,
    "a column": "ALTER TABLE orders ADD more int",
    "a type": "ALTER TABLE orders ALTER note TYPE text",
    "a type and back": "ALTER TABLE orders ALTER note TYPE varchar(3000);"
    "ALTER TABLE orders ALTER note TYPE varchar(2000)",
    "a column dropped and made anew": "ALTER TABLE parts DROP note; ALTER TABLE parts ADD note text",
    "a partition detached": "ALTER TABLE parts DETACH PARTITION parts_low",
    "a partition detached and back": (
        "ALTER TABLE parts DETACH PARTITION parts_low;"
        "ALTER TABLE parts ATTACH PARTITION parts_low FOR VALUES FROM (0) TO (200)"
    ),
    "a key dropped and made anew": "ALTER TABLE orders DROP CONSTRAINT orders_pkey;"
    "ALTER TABLE orders ADD PRIMARY KEY (id)",
    "rewritten": "VACUUM FULL parts_low",
    "truncated": "TRUNCATE journal_old",
    "a child": "CREATE TABLE more_orders () INHERITS (orders)",
    "a replica identity": "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
    "a label renamed and back": "ALTER TYPE mood RENAME VALUE 'sad' TO 'x'; ALTER TYPE mood RENAME VALUE 'x' TO 'sad'",
    "a field of a row": "ALTER TABLE places ADD country text",
}
"""The run stops."""

EITHER = {
    "columns that swap their names for a while": f"{SWAP}; SELECT pg_sleep(0.5); {SWAP}",
    "a column renamed for a while": (
        "ALTER TABLE parts RENAME note TO n; SELECT pg_sleep(0.3); ALTER TABLE parts RENAME n TO note"
    ),
    "a replica identity for a while": (
        "ALTER TABLE orders REPLICA IDENTITY DEFAULT; SELECT pg_sleep(0.3); ALTER TABLE orders REPLICA IDENTITY FULL"
    ),
    "a type for a while": (
        "ALTER TABLE parts ALTER note TYPE varchar; SELECT pg_sleep(0.3); ALTER TABLE parts ALTER note TYPE text"
    ),
    "a column for a while": "ALTER TABLE orders ADD more int; SELECT pg_sleep(0.3); ALTER TABLE orders DROP more",
}
"""The run stops if anything was read or logged in the meantime. Otherwise the copy is exact."""

_ENDED = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)
_NOT_NOW = (psycopg.errors.CheckViolation, psycopg.errors.UndefinedColumn)
"""No partition takes the row yet; a column has another name for a moment."""


class Application:
    """Writers that can be paused. Their unexpected errors are raised when the block ends."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._may_write = threading.Lock()
        self.writing = Writing(self._write, 0, 2)
        self.written: set[str] = set()
        """The tables in which a row was changed."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self._may_write:
            yield

    def _write(self, chance: random.Random, stop: threading.Event) -> None:
        with self._database.connect() as connection:
            while not stop.is_set():
                with self._may_write, contextlib.suppress(*_ENDED, *_NOT_NOW):
                    self.written |= self._one(connection, chance)
                time.sleep(0.001)

    @staticmethod
    def _one(connection: psycopg.Connection[Any], chance: random.Random) -> set[str]:
        table, key = chance.choice([("orders", "id"), ("parts", "id"), ("journal", "at")])
        # At first, `parts` has no partition for values beyond 400.
        one, other = chance.randrange(600), chance.randrange(600)
        note = chance.choice(["short", "y" * 300])
        statement, arguments = chance.choice(
            [
                (f"INSERT INTO {table} ({key}, note) VALUES (%s, %s)", (one, note)),
                (f"UPDATE {table} SET note = %s WHERE {key} = %s", (note, one)),
                (f"UPDATE {table} SET note = %s WHERE {key} >= 400", (note,)),
                (f"UPDATE {table} SET {key} = %s WHERE {key} = %s", (other, one)),
                (f"DELETE FROM {table} WHERE {key} = %s", (one,)),
            ]
        )
        return {table} if connection.execute(statement, arguments).rowcount else set()


@pytest.fixture
def shop(postgres: PostgresServer, database: str) -> Iterator[PostgresDatabase]:
    made = PostgresDatabase(postgres, database)
    with made.account():
        made.execute(*SETUP)
        yield made


def copied(shop: PostgresDatabase, when: str, act: Callable[[], None]) -> None:
    """Copy all tables while the application writes and ``act`` happens; the copy is exact, or an error is raised."""
    application = Application(shop)
    run: Begun | None = None
    try:
        with application.writing:
            with application.paused():
                run = Begun(shop, *TABLES)
                truth = {name: shop.rows(f"(SELECT {columns} FROM {name}) t") for name, columns in TABLES.items()}
                application.written.clear()
            soon(lambda: application.written, set(TABLES))
            found, uppers = _read(run, when, act)
            time.sleep(0.1)
        window = run.window(uppers)
    finally:
        if run is not None:
            run.release()
    for name, table in run.tables.items():
        schema = run.source.arrow_schema(table)
        rows = [dict(zip(schema.names, row, strict=True)) for row in truth[name].elements()]
        expected = Counter(row_keys(pa.Table.from_pylist(rows, schema), schema.names))
        assert _rewound(run, name, found[name], window) == expected, name
        assert window.before.get(name) or window.counts.get(name), "nothing was written: the test provokes nothing"


def _read(run: Begun, when: str, act: Callable[[], None]) -> tuple[dict[str, list[pa.Table]], Position | None]:
    found: dict[str, list[pa.Table]] = {name: [] for name in run.tables}
    if when == "before the reads":
        act()
    with (
        ThreadPoolExecutor(1) as pool,
        run.source.shared_reads({plan.consistency for plan in run.plans.values()}, LOCK) as shared,
    ):
        acting: Future[None] | None = None
        chunks = [(name, one) for name, table in run.tables.items() for one in shared.plan_chunks(table, 40)]
        random.Random(0).shuffle(chunks)
        for number, (name, chunk) in enumerate(chunks):
            if number == len(chunks) // 2 and when == "in the middle of the reads":
                acting = pool.submit(act)
                # Reads go on while it acts.
                wait([acting], timeout=0.1)
            table, consistency = run.tables[name], run.plans[name].consistency
            if consistency == "exported":
                with shared.reader(table, consistency, LOCK) as reader:
                    schema = shared.arrow_schema(table)
                    found[name].append(pa.Table.from_batches(list(reader.read(chunk)), schema))
                    upper = reader.upper
            else:
                found[name].append(read_chunks(shared, table, consistency, [chunk]))
    if acting is not None:
        acting.result()
    return found, upper


def _rewound(run: Begun, name: str, found: list[pa.Table], window: Any) -> Counter[bytes]:
    table = run.tables[name]
    rows = pa.concat_tables(found)
    all_bytes = row_keys(rows, rows.schema.names)
    if table.keyless:
        counts = Counter(all_bytes)
        counts.subtract(window.counts[name])
        assert min(counts.values()) >= 0
        return +counts
    before = window.before[name]
    kept = [row for row, key in zip(all_bytes, row_keys(rows, table.key), strict=True) if key not in before]
    return Counter([*kept, *(row for row in before.values() if row is not None)])


def acting(shop: PostgresDatabase, statements: str) -> Callable[[], None]:
    def act() -> None:
        with shop.connect() as connection:
            connection.execute("SET lock_timeout = 0")
            for statement in statements.split(";"):
                connection.execute(statement.strip().encode())

    return act


WHEN = pytest.mark.parametrize("when", ["before the reads", "in the middle of the reads"])


@pytest.mark.slow
@WHEN
def test_what_changes_no_row_does_not_stop_the_run(shop: PostgresDatabase, when: str) -> None:
    copied(shop, when, acting(shop, ";".join(HARMLESS.values())))


@pytest.mark.slow
@WHEN
def test_a_new_partition_takes_every_change_while_it_has_no_identity(shop: PostgresDatabase, when: str) -> None:
    copied(shop, when, acting(shop, HARMLESS["a new partition without an identity"]))


@pytest.mark.slow
@WHEN
def test_columns_that_swap_their_names_for_a_while_never_show(shop: PostgresDatabase, when: str) -> None:
    with contextlib.suppress(CdcError):
        copied(shop, when, acting(shop, EITHER["columns that swap their names for a while"]))


@pytest.mark.long
@WHEN
@pytest.mark.parametrize("what", HARMLESS)
def test_each_of_what_changes_no_row(shop: PostgresDatabase, when: str, what: str) -> None:
    copied(shop, when, acting(shop, HARMLESS[what]))


@pytest.mark.long
@WHEN
@pytest.mark.parametrize("what", REFUSED)
def test_what_could_change_a_row_stops_the_run(shop: PostgresDatabase, when: str, what: str) -> None:
    with pytest.raises(CdcError):
        copied(shop, when, acting(shop, REFUSED[what]))


@pytest.mark.long
@WHEN
@pytest.mark.parametrize("what", EITHER)
def test_what_was_altered_and_altered_back_stops_the_run_or_did_not_matter(
    shop: PostgresDatabase, when: str, what: str
) -> None:
    with contextlib.suppress(CdcError):
        copied(shop, when, acting(shop, EITHER[what]))


@pytest.mark.parametrize("consistency", ["watermark", "exported"])
@pytest.mark.parametrize("rows", [0, 100])
def test_schemas_that_swap_their_names_while_a_chunk_is_read_stop_the_run(
    shop: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, consistency: str, rows: int
) -> None:
    """A lock on a table does not protect the name of its schema, so the name may mean another table later."""
    shop.execute(
        "CREATE SCHEMA other",
        "CREATE TABLE other.orders (LIKE orders INCLUDING ALL)",
        "ALTER TABLE other.orders REPLICA IDENTITY FULL",
        f"INSERT INTO other.orders SELECT i, 'other' FROM generate_series(1, {rows}) i",
    )
    swap = "ALTER SCHEMA public RENAME TO o", "ALTER SCHEMA other RENAME TO public", "ALTER SCHEMA o RENAME TO other"
    check = CopyReader.ask

    def swap_and_check(reader: CopyReader, sql: str) -> Any:
        shop.transaction(*swap)
        return check(reader, sql)

    run = Begun(shop, "orders", consistency=consistency)
    table = run.tables["orders"]
    (chunk,) = run.source.plan_chunks(table, 1_000)
    try:
        with (
            run.source.shared_reads({consistency}, LOCK) as source,
            source.reader(table, consistency, LOCK) as reader,
        ):
            assert sum(batch.num_rows for batch in reader.read(chunk)) == 400
            shop.transaction(*swap)
            monkeypatch.setattr(CopyReader, "ask", swap_and_check)
            with pytest.raises(SchemaChanged, match="another table had its name"):
                list(reader.read(chunk))
            monkeypatch.undo()
        run.source.check_tables([table])
    finally:
        run.release()
