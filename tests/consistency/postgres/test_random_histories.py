"""Whatever the writers do, the published tables are those of the initial LSN, row for row.

The oracle is PostgreSQL itself: physical recovery brings a second server to exactly that LSN.
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

from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.comparing import assert_same_rows
from tests.consistency.postgres import history
from tests.consistency.postgres.servers import ENDS, primary_of
from tests.consistency.writing import Writing
from tests.seeds import seeds, some
from tests.soon import soon


@pytest.fixture(scope="module", params=some(*ENDS))
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with primary_of(request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_slot_is_left(primary: PostgresServer) -> Iterator[None]:
    yield
    soon(lambda: primary.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cdc%'"), [])
    assert primary.query("SELECT pubname FROM pg_publication") == []


def plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
@pytest.mark.parametrize("consistency", ["auto", "exported"])
def test_no_row_differs_from_the_initial_position(
    consistency: str,
    seed: int,
    primary: PostgresServer,
    recovery: PostgresRecovery,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    chance = random.Random(seed)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    with primary.connect() as connection:
        history.create(connection, schema, seed, rows=chance.choice([20, 200, 600]))
    run = Pipeline(
        spark,
        settings_of(primary),
        tmp_path.as_uri(),
        [f"{schema}.{subject.name}" for subject in history.SUBJECTS],
        consistency=consistency,
        chunk_rows=chance.choice([15, 60, 1000]),
        chunk_pause=chance.choice([0, 0.01, 0.03]),
    )
    writers = Writing(history.write(primary.connect, schema), seed, chance.choice([4, 5, 6]))
    vacuums = Writing(history.vacuum(primary.connect, schema), seed, 1)

    with writers, vacuums:
        writers.wait_for_more(50)
        initial = run.record()
        # Early reads see nearly the initial position, late ones much more.
        writers.wait_for_more(chance.choice([10, 10, 100]))
        run.snapshot()
        writers.wait_for_more(chance.choice([0, 50]))
    run.extract_delta()
    tables = run.consolidate()["published"]

    recovery.advance_to(initial)
    with recovery.connect() as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        for subject in history.SUBJECTS:
            name = f"{schema}.{subject.name}"
            _, rows = published(tables[name])
            truth = Counter(tuple(map(plain, row)) for row in connection.execute(history.select(schema, subject)))
            copied = Counter(tuple(map(plain, row)) for row in rows)
            assert_same_rows(f"seed {seed}, {name} at {initial}", copied, truth)
    assert run.found["extract_delta"]["transactions"] > 0, f"seed {seed}: nothing was written during the run"
    primary.query(f"DROP SCHEMA {schema} CASCADE")
