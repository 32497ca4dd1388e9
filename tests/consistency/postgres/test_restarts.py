"""Tables that are altered while a run works are read again. All tables are those of the moved position, row for row.

The oracle is PostgreSQL itself: physical recovery brings a second server to exactly that LSN.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import MergeOptions
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import ExactnessError, LogGone
from airflow_provider_cdc.jobs.restart import altered
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.acting import DURING, act_during, spool_at_once
from tests.consistency.comparing import assert_same_rows
from tests.consistency.postgres import history
from tests.consistency.postgres.servers import ENDS, primary_of
from tests.consistency.postgres.test_random_histories import plain
from tests.consistency.writing import Writing
from tests.seeds import SOAK_SEED, some
from tests.soon import soon

ALTERS: dict[str, tuple[str, ...]] = {
    "truncate and swap": (
        "TRUNCATE integers",
        # Harmless in a run that does not move: at its position, the partition had no row of the table.
        "CREATE TABLE parted_new (LIKE parted INCLUDING ALL)",
        "ALTER TABLE parted_new REPLICA IDENTITY FULL",
        "INSERT INTO parted_new SELECT 40, i, 'attached' FROM generate_series(1, 9) i",
        "ALTER TABLE parted ATTACH PARTITION parted_new FOR VALUES FROM (40) TO (50)",
        "BEGIN",
        "CREATE TABLE names_new (LIKE names INCLUDING ALL)",
        "ALTER TABLE names_new REPLICA IDENTITY FULL",
        "LOCK TABLE names",
        "INSERT INTO names_new SELECT * FROM names WHERE length(name) % 2 = 1",
        "ALTER TABLE names RENAME TO names_old",
        "ALTER TABLE names_new RENAME TO names",
        "COMMIT",
    ),
    "columns that come and go": (
        "ALTER TABLE integers ADD extra integer NOT NULL DEFAULT 7; ALTER TABLE integers ALTER extra SET DEFAULT 8",
        "ALTER TABLE blobs ADD noise double precision DEFAULT random()",
        "ALTER TABLE names ADD gone integer; ALTER TABLE names DROP gone",
        "ALTER TABLE keyless ADD more text DEFAULT 'abc'",
    ),
    "types and keys": (
        "ALTER TABLE integers ALTER big TYPE numeric",
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (number, code)",
    ),
    "partitions": (
        "DROP TABLE parted_low",
        "ALTER TABLE parted DETACH PARTITION parted_high",
    ),
    "dropped and made again": (
        "CREATE TABLE again (LIKE blobs INCLUDING ALL)",
        "ALTER TABLE again REPLICA IDENTITY FULL",
        "BEGIN",
        "DROP TABLE blobs",
        "ALTER TABLE again RENAME TO blobs",
        "INSERT INTO blobs VALUES ('abc', NULL, B'000000001')",
        "COMMIT",
    ),
    "there and back": (
        "BEGIN",
        "ALTER TABLE keyless RENAME b TO other",
        "ALTER TABLE keyless RENAME other TO b",
        "COMMIT",
        "ALTER TABLE integers ALTER amount TYPE numeric(31,6)",
        "ALTER TABLE integers ALTER amount TYPE numeric(30,6)",
    ),
}


@pytest.fixture(scope="module", params=some(*ENDS))
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with primary_of(request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_slot_is_left(primary: PostgresServer) -> Iterator[None]:
    yield
    soon(lambda: primary.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cdc%'"), [])
    assert primary.query("SELECT pubname FROM pg_publication") == []


def _alter(server: PostgresServer, schema: str, statements: tuple[str, ...]) -> None:
    with server.connect() as connection:
        connection.execute(f"SET search_path TO {schema}")
        for statement in statements:
            connection.execute(statement)


@pytest.mark.slow
@pytest.mark.parametrize("identity", some("FULL", "DEFAULT"))
@pytest.mark.parametrize("during", some(*DURING))
@pytest.mark.parametrize("name", some(*ALTERS, plain=2))
def test_altered_tables_are_those_of_the_moved_position(
    name: str,
    during: str,
    identity: str,
    primary: PostgresServer,
    recovery: PostgresRecovery,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = SOAK_SEED or 1
    chance = random.Random(f"{seed}/{name}/{during}")
    if spools := list(ALTERS).index(name) % 2 == 1:
        spool_at_once(monkeypatch)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    with primary.connect() as connection:
        history.create(connection, schema, seed, rows=chance.choice([20, 200]), identity=identity)
    tables = [f"{schema}.{subject.name}" for subject in history.SUBJECTS]
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), tables, chunk_rows=chance.choice([15, 100]))

    with Writing(history.write(primary.connect, schema), seed, 4) as writers:

        def act() -> None:
            writers.wait_for_more(20)
            _alter(primary, schema, ALTERS[name])
            writers.wait_for_more(20)

        writers.wait_for_more(50)
        initial = run.record()
        writers.wait_for_more(30)
        if during == DURING[1]:
            _alter(primary, schema, ("ALTER TABLE integers ALTER amount TYPE numeric(32,6)",))
        act_during(run, during, act, monkeypatch)
        run.snapshot()
        if during == DURING[2]:
            act()
        writers.wait_for_more(10)
        run.extract_delta()
    found = run.consolidate()
    manifest = Run.load(run.run).manifest
    position = found["position"]

    recovery.advance_to(position)
    with recovery.connect() as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        for subject in history.SUBJECTS:
            table = f"{schema}.{subject.name}"
            columns, rows = published(found["published"][table])
            names = [f"{column}::{subject.casts[column]}" if column in subject.casts else column for column in columns]
            sql = f"SELECT {', '.join(names)} FROM {table}"
            truth = Counter(tuple(map(_text, row)) for row in connection.execute(sql))
            copied = Counter(tuple(map(_text, row)) for row in rows)
            assert_same_rows(f"seed {seed}, {table} at {position}", copied, truth)
    if during != DURING[2]:
        assert position != initial, "the position did not move"
        assert any(entry.basis for entry in manifest.tables), "no table was kept"
        if spools and during == DURING[0] and identity == "FULL":
            # Without row images in the log, the touched rows are read again, and no pieces are recorded.
            assert all(Run.load(run.run).pieces(start) for start in manifest.starts), "the pieces were not used"
    primary.query(f"DROP SCHEMA {schema} CASCADE")


def _small_tables(primary: PostgresServer, identity: str = "FULL") -> str:
    """Create a schema with three tables of a few rows, and return its name."""
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    for table in ("orders", "visits", "guests"):
        key = "id integer PRIMARY KEY, note text NOT NULL"
        primary.query(
            f"CREATE TABLE {schema}.{table} ({key}); ALTER TABLE {schema}.{table} REPLICA IDENTITY {identity}"
        )
        primary.query(f"INSERT INTO {schema}.{table} SELECT i, 'first' FROM generate_series(1, 20) i")
    return schema


def _act_at(run: Pipeline, acts: dict[str, Callable[[], None]], patch: pytest.MonkeyPatch) -> None:
    for during, act in acts.items():
        act_during(run, during, act, patch)


def _check_present_rows(run: Pipeline, primary: PostgresServer) -> None:
    """Check that the copies have the present rows. Nobody may have written since the position of the run."""
    for table, uri in run.found["consolidate"]["published"].items():
        assert sorted(published(uri)[1]) == sorted(map(tuple, primary.query(f"SELECT * FROM {table}"))), table


@pytest.mark.slow
@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_tables_stay_read_in_each_restart(
    identity: str, primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a table comes from the slot and the publication under which it was read, not from the latest ones."""
    schema = _small_tables(primary, identity)
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"])
    run.record()
    first = ("UPDATE visits SET note = 'seen' WHERE id < 5", "ALTER TABLE orders ADD c float8 DEFAULT random()")
    second = ("UPDATE visits SET note = 'late' WHERE id < 3", "DELETE FROM guests WHERE id = 7", "TRUNCATE orders")
    acts = {DURING[0]: lambda: _alter(primary, schema, first), DURING[1]: lambda: _alter(primary, schema, second)}
    _act_at(run, acts, monkeypatch)
    run.finish()
    manifest = Run.load(run.run).manifest
    assert [list(restart.tables) for restart in manifest.restarts] == [[f"{schema}.orders"]] * 2
    assert {entry.table.name.name: entry.start for entry in manifest.tables if entry.basis} == {
        "visits": "1",
        "guests": "1",
    }
    _check_present_rows(run, primary)


@pytest.mark.parametrize("given", [False, True])
def test_a_publication_that_was_altered_before_the_move_stops_the_run(
    given: bool, primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lacks changes of tables that are not read again."""
    schema = _small_tables(primary)
    settings = settings_of(primary)
    if given:
        primary.query(f"CREATE PUBLICATION given FOR TABLES IN SCHEMA {schema}")
        settings = replace(settings, options={"publication": "given"})
    run = Pipeline(spark, settings, tmp_path.as_uri(), [f"{schema}.*"])
    run.record()

    def act() -> None:
        ((name,),) = primary.query("SELECT pubname FROM pg_publication")
        primary.query(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
        _alter(primary, schema, ("UPDATE visits SET note = 'seen' WHERE id < 5", "TRUNCATE orders"))
        if given:
            primary.query(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")

    act_during(run, DURING[0], act, monkeypatch)
    with pytest.raises(ExactnessError, match="publication was altered"):
        run.finish()
    run.release()
    primary.query("DROP PUBLICATION IF EXISTS given")


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["TRUNCATE orders", "ALTER TABLE orders ADD c integer DEFAULT 5"])
def test_a_run_that_lost_the_slot_of_earlier_reads_begins_anew(
    statement: str, primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another table with this slot is carried over its schema change."""
    schema = _small_tables(primary)
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"])
    run.record()
    act_during(run, DURING[0], lambda: _alter(primary, schema, (statement,)), monkeypatch)
    run.snapshot()
    (start,) = Run.load(run.run).manifest.starts.values()
    primary.query(f"SELECT pg_drop_replication_slot('{start.facts.slot}')")
    with pytest.raises(LogGone, match="clear the task `lock_and_record`"):
        run.extract_delta()
    run.record()
    run.finish()
    assert not Run.load(run.run).manifest.starts
    _check_present_rows(run, primary)


@pytest.mark.slow
def test_an_altered_table_without_its_filtered_column_is_left_out(
    primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = _small_tables(primary)
    where = {f"{schema}.orders": "note = 'first'"}
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"], where=where, on_table_error="skip")
    run.record()
    act_during(
        run, DURING[0], lambda: _alter(primary, schema, ("ALTER TABLE orders RENAME note TO text",)), monkeypatch
    )
    run.finish()
    assert list(run.found["consolidate"]["skipped"]) == [f"{schema}.orders"]
    _check_present_rows(run, primary)


@pytest.mark.slow
@pytest.mark.parametrize("others", ["kept", "altered"])
def test_a_run_that_reads_rows_again_goes_on_without_a_table_that_was_dropped(
    others: str, primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the move, nobody looks for the table or for its log. If all others are altered, its start is gone."""
    schema = _small_tables(primary, "DEFAULT")
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"], on_table_error="skip")
    run.record()
    more = ("visits", "guests") if others == "altered" else ()
    statements = ("DROP TABLE orders", *(f"ALTER TABLE {name} ADD c integer" for name in more))
    act_during(run, DURING[0], lambda: _alter(primary, schema, statements), monkeypatch)
    run.finish()
    assert len(Run.load(run.run).manifest.restarts) == 1
    assert list(run.found["consolidate"]["skipped"]) == [f"{schema}.orders"]
    _check_present_rows(run, primary)


@pytest.mark.slow
@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_a_run_that_moves_no_more_leaves_altered_tables_out(
    identity: str,
    primary: PostgresServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(altered, "LIMIT", 1)
    schema = _small_tables(primary, identity)
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"], on_table_error="skip")
    run.record()
    # Otherwise the position of the run is before these changes.
    touched = ("UPDATE visits SET note = 'late' WHERE id < 5",) if identity == "DEFAULT" else ()
    acts = {
        DURING[0]: lambda: _alter(primary, schema, ("DELETE FROM visits WHERE id = 9", "TRUNCATE orders")),
        DURING[1]: lambda: _alter(primary, schema, (*touched, "TRUNCATE orders")),
    }
    _act_at(run, acts, monkeypatch)
    run.finish()
    assert len(Run.load(run.run).manifest.restarts) == 1
    assert list(run.found["consolidate"]["skipped"]) == [f"{schema}.orders"]
    _check_present_rows(run, primary)


@pytest.mark.slow
def test_shards_that_are_altered_together_stay_one_table(
    primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the new position, the shards are compared with each other, and not with the columns of the plan."""
    schema = _small_tables(primary)
    shards = [f"{schema}.orders", f"{schema}.visits"]
    primary.query(f"UPDATE {schema}.visits SET id = id + 100")
    merging = MergeOptions({f"{schema}.all": shards})
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"], merging=merging)
    run.record()

    def act() -> None:
        add = "ALTER TABLE {} ADD c integer DEFAULT 7; ALTER TABLE {} ALTER note TYPE varchar(9)"
        write = "UPDATE visits SET c = 8 WHERE id < 105"
        _alter(primary, schema, ("BEGIN", *(add.format(name, name) for name in ("orders", "visits")), write, "COMMIT"))

    act_during(run, DURING[0], act, monkeypatch)
    run.finish()
    _, rows = published(run.found["consolidate"]["published"][f"{schema}.all"])
    assert Counter(rows) == Counter(primary.query(" UNION ALL ".join(f"SELECT * FROM {name}" for name in shards)))


@pytest.mark.slow
@pytest.mark.parametrize("during", DURING[:2])
def test_a_replica_identity_that_was_lost_for_a_while_has_its_table_read_again(
    during: str, primary: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lacks the old rows of the changes in between."""
    schema = _small_tables(primary)
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{schema}.*"])
    initial = run.record()

    def act() -> None:
        update = "UPDATE visits SET note = 'without its old row' WHERE id < 5"
        identity = "ALTER TABLE visits REPLICA IDENTITY {}"
        _alter(primary, schema, (identity.format("DEFAULT"), update, identity.format("FULL")))

    if during == DURING[0]:
        act()
    else:
        act_during(run, DURING[0], act, monkeypatch)
    run.snapshot()
    run.extract_delta()
    assert run.consolidate()["position"] != initial
    (restart,) = Run.load(run.run).manifest.restarts
    assert list(restart.tables) == [f"{schema}.visits"]
    _check_present_rows(run, primary)


def _text(value: Any) -> Any:
    value = plain(value)
    # A numeric without a precision is published as text.
    return str(value) if type(value).__name__ == "Decimal" else value
