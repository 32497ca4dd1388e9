"""Without REPLICA IDENTITY FULL, the copy has the tables as they were at the view's LSN, whatever the writers do.

The oracle is PostgreSQL's own recovery to that LSN.
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

from airflow_provider_cdc.jobs.snapshot import reread_passes
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.postgres import history
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.consistency.writing import Writing
from tests.seeds import seeds
from tests.soon import soon


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[] if one == VERSIONS[-1] else pytest.mark.long) for one in VERSIONS],
)
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with primary_of(request.param) as server:
        yield server


def plain(value: Any) -> Any:
    if isinstance(value, float):
        # -0.0 is not 0.0, and a NaN is a NaN.
        return repr(value)
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.parametrize("seed", seeds())
def test_no_row_differs_from_the_view(
    seed: int,
    primary: PostgresServer,
    recovery: PostgresRecovery,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(seed)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    with primary.connect() as connection:
        history.create(connection, schema, seed, chance.choice([20, 200, 400]), history.AGAIN, "DEFAULT")
    # Every other one goes through passes, however few keys were touched.
    monkeypatch.setattr(reread_passes, "FEW_KEYS", chance.choice([0, 30, reread_passes.FEW_KEYS]))
    monkeypatch.setattr(reread_passes, "KEYS_PER_TASK", chance.choice([10, reread_passes.KEYS_PER_TASK]))
    run = Pipeline(
        spark,
        settings_of(primary),
        tmp_path.as_uri(),
        [f"{schema}.{subject.name}" for subject in history.AGAIN],
        chunk_rows=chance.choice([15, 60, 1000]),
        chunk_pause=chance.choice([0, 0.01, 0.03]),
    )
    writers = Writing(history.write(primary.connect, schema, subjects=history.AGAIN), seed, chance.choice([4, 5, 6]))
    vacuums = Writing(history.vacuum(primary.connect, schema), seed, 1)

    with writers, vacuums:
        writers.wait_for_more(50)
        initial = run.record()
        writers.wait_for_more(chance.choice([10, 10, 100]))
        upper = run.snapshot()["snapshot_upper"]
        writers.wait_for_more(chance.choice([0, 50]))
    run.extract_delta()
    found = run.consolidate()

    assert found["position"] == upper != initial
    recovery.advance_to(upper)
    with recovery.connect() as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        connection.execute("SET IntervalStyle TO 'iso_8601'")
        for subject in history.AGAIN:
            name = f"{schema}.{subject.name}"
            _, rows = published(found["published"][name])
            truth = Counter(tuple(map(plain, row)) for row in connection.execute(history.select(schema, subject)))
            copied = Counter(tuple(map(plain, row)) for row in rows)
            missing, extra = truth - copied, copied - truth
            where = f"seed {seed}, {name} at {upper}, began at {initial}"
            assert not missing, f"{where}: missing {list(missing)[:3]}, instead {list(extra)[:3]}"
            assert not extra, f"{where}: extra {list(extra)[:3]}"
    touched = run.found["extract_delta"]["keys"]
    assert sum(touched.values()) > 0, f"seed {seed}: nothing was touched during the run"
    soon(lambda: primary.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cdc%'"), [])
    assert primary.query("SELECT pubname FROM pg_publication") == []
    primary.query(f"DROP SCHEMA {schema} CASCADE")
