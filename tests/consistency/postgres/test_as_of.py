"""A copy as of a past LSN or time has exactly the rows of that moment, whatever was written since.

The oracle is PostgreSQL itself: physical recovery brings a second server to exactly that LSN.
``sources/postgres/steps/test_past.py`` compares the LSN of a time with commit times that the tests choose. This module
compares it with commit times that the rows themselves contain.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.postgres import history
from tests.consistency.postgres.servers import ENDS, primary_of
from tests.consistency.writing import Writing
from tests.seeds import seeds, some
from tests.soon import soon

SUBJECTS = [subject for subject in history.SUBJECTS if not subject.leaves]
HERE = "SELECT pg_current_wal_insert_lsn()::text"


@pytest.fixture(scope="module", params=some(*ENDS[::-1]))
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with primary_of(request.param, track_commit_timestamp="on") as server:
        yield server


@pytest.fixture(autouse=True)
def _only_the_standing_slot_is_left(primary: PostgresServer) -> Iterator[None]:
    yield
    settings = settings_of(primary)
    with session(settings) as connection:
        name = name_of(connection, "night")
    soon(lambda: primary.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cdc%'"), [(name,)])
    assert primary.query("SELECT pubname FROM pg_publication") == [(name,)]
    slots.drop(settings, name, name)


def plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


def pipeline(spark: SparkSession, primary: PostgresServer, target: Path, schema: str, **options: Any) -> Pipeline:
    tables = [f"{schema}.{subject.name}" for subject in SUBJECTS]
    return Pipeline(spark, settings_of(primary), target.as_uri(), tables, standing_slot="night", **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_no_row_differs_from_the_past(
    seed: int, primary: PostgresServer, recovery: PostgresRecovery, spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    with primary.connect() as connection:
        history.create(connection, schema, seed, rows=chance.choice([20, 200, 600]))
    # What preflight of any run does: from here on there is a past.
    pipeline(spark, primary, tmp_path / "first", schema).preflight()
    points: list[str] = []
    with Writing(history.write(primary.connect, schema), seed, chance.choice([4, 5, 6])) as writers:
        for _ in range(3):
            writers.wait_for_more(chance.randrange(1, 60))
            points.append(datetime.now(UTC).isoformat())
            writers.wait_for_more(chance.randrange(1, 60))
            points.append(primary.query(HERE)[0][0])
            if chance.random() < 0.3:
                primary.query("SELECT pg_switch_wal()")
        # Let what was inserted by then be on disk.
        primary.query("CHECKPOINT")
        # Times and positions in turn.
        asked = chance.choice(points[seed % 2 :: 2])
        run = pipeline(
            spark,
            primary,
            tmp_path / "copy",
            schema,
            consistency=chance.choice(["auto", "auto", "exported"]),
            chunk_rows=chance.choice([15, 60, 1000]),
            chunk_pause=chance.choice([0, 0.01]),
            as_of=asked,
        )
        initial = run.record()
        writers.wait_for_more(chance.choice([10, 100]))
        run.snapshot()
    run.extract_delta()
    tables = run.consolidate()["published"]

    recovery.advance_to(initial)
    with recovery.connect() as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        for subject in SUBJECTS:
            name = f"{schema}.{subject.name}"
            _, rows = published(tables[name])
            truth = Counter(tuple(map(plain, row)) for row in connection.execute(history.select(schema, subject)))
            copied = Counter(tuple(map(plain, row)) for row in rows)
            missing, extra = truth - copied, copied - truth
            where = f"seed {seed}, {name} at {initial}"
            assert not missing, f"{where}: missing {list(missing)[:3]}, instead {list(extra)[:3]}"
            assert not extra, f"{where}: extra {list(extra)[:3]}"
            if "T" in asked:
                ((last,),) = connection.execute(f"SELECT max(pg_xact_commit_timestamp(xmin)) FROM {name}")
                assert last <= datetime.fromisoformat(asked), f"{where}: a row is of a later time than {asked}"
    assert run.found["extract_delta"]["transactions"] > 0, f"seed {seed}: nothing was written since"
    primary.query(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.slow
def test_one_point_is_one_copy_whenever_made(primary: PostgresServer, spark: SparkSession, tmp_path: Path) -> None:
    with primary.connect() as connection:
        connection.execute("CREATE SCHEMA s")
        connection.execute("CREATE TABLE s.a (id int PRIMARY KEY, v int); CREATE TABLE s.b (v int)")
        connection.execute("ALTER TABLE s.a REPLICA IDENTITY FULL; ALTER TABLE s.b REPLICA IDENTITY FULL")
        connection.execute("INSERT INTO s.a VALUES (1, 1), (2, 2), (3, 3); INSERT INTO s.b VALUES (1), (1), (2)")
        settings = settings_of(primary)
        # The first run has no past yet, and begins one.
        first = Pipeline(spark, settings, (tmp_path / "first").as_uri(), ["s.*"], standing_slot="night")
        first.record()
        first.finish()
        midnight = primary.query("SELECT clock_timestamp()")[0][0].isoformat()
        copies = []
        for number in range(2):
            run = Pipeline(
                spark,
                settings,
                (tmp_path / str(number)).as_uri(),
                ["s.*"],
                as_of=midnight,
                standing_slot="night",
                run_id=f"20260101T00000{number}Z-00000000",
            )
            initial = run.record()
            found = run.finish()["published"]
            copies.append((initial, sorted(published(found["s.a"])[1]), sorted(published(found["s.b"])[1])))
            connection.execute("DELETE FROM s.a WHERE id = %s", (number,))
            connection.execute("INSERT INTO s.b VALUES (2), (3)")
        assert copies[0][1:] == ([(1, 1), (2, 2), (3, 3)], [(1,), (1,), (2,)])
        assert copies[1] == copies[0]
        connection.execute("DROP SCHEMA s CASCADE")
