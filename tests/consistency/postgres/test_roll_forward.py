"""A copy that is rolled forward every night has, row for row, the tables of each night's position.

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

from airflow_provider_cdc.jobs.snapshot import reread_passes
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.comparing import assert_same_rows
from tests.consistency.postgres import history
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.consistency.writing import Writing
from tests.seeds import chain_length, seeds
from tests.soon import soon

NIGHTS = chain_length(2)
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]
WAYS = {"images": (history.SUBJECTS, "FULL"), "keys": (history.AGAIN, "DEFAULT")}
SETTINGS = [
    (OLDEST, "images"),
    (NEWEST, "keys"),
    pytest.param((NEWEST, "images"), marks=pytest.mark.long),
    pytest.param((OLDEST, "keys"), marks=pytest.mark.long),
]
READ_IN_THE_VIEW = ("keyless", "unnamed")
"""Tables whose keys the log does not have without REPLICA IDENTITY FULL."""


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def setting(request: pytest.FixtureRequest) -> tuple[int, str]:
    """The version of the server, and the way."""
    found: tuple[int, str] = request.param
    return found


@pytest.fixture(scope="module")
def primary(setting: tuple[int, str]) -> Iterator[PostgresServer]:
    with primary_of(setting[0]) as server:
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
    if isinstance(value, float):
        # -0.0 is not 0.0, and a NaN is a NaN.
        return repr(value)
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_no_row_differs_after_any_night(
    seed: int,
    setting: tuple[int, str],
    primary: PostgresServer,
    recovery: PostgresRecovery,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, way = random.Random(f"{setting} {seed}"), setting[1]
    every, identity = WAYS[way]
    subjects = chance.sample(every, 6)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    with primary.connect() as connection:
        history.create(connection, schema, seed, chance.choice([20, 200, 400]), subjects, identity)

    rolled = tries = 0
    for night in range(NIGHTS + 1):
        left_out = chance.choice(subjects).name if night and chance.random() < 0.3 else ""
        named = [subject for subject in subjects if subject.name != left_out]
        writers = Writing(
            history.write(primary.connect, schema, 0.01, subjects), seed + 100 * night, chance.choice([3, 4])
        )
        vacuums = Writing(history.vacuum(primary.connect, schema, subjects), seed, 1)
        chunk_rows = chance.choice([30, 100, 1000])
        with writers, vacuums:
            writers.wait_for_more(chance.randrange(1, 60))
            # However few keys were touched.
            monkeypatch.setattr(reread_passes, "FEW_KEYS", chance.choice([0, 30, 10_000]))
            while True:
                tries += 1
                run = Pipeline(
                    spark,
                    settings_of(primary),
                    tmp_path.as_uri(),
                    [f"{schema}.{subject.name}" for subject in named],
                    run_id=f"202601{tries:02}T000000Z-{seed:08}",
                    chunk_rows=chunk_rows,
                    standing_slot="night",
                    refresh="auto",
                )
                run.record()
                assert not night or any(plan.base for plan in run.plans), [plan.reason for plan in run.plans]
                run.snapshot()
                if chance.random() < 0.8:
                    break
                # This one fails for good: nothing of it stays.
                run.extract_delta()
                run.release()
        rolled += sum(bool(plan.base) for plan in run.plans)
        found = _finished(run, chance)
        recovery.advance_to(found["position"])
        with recovery.connect() as connection:
            connection.execute("SET TimeZone TO 'UTC'")
            connection.execute("SET IntervalStyle TO 'iso_8601'")
            for subject in named:
                name = f"{schema}.{subject.name}"
                _, rows = published(found["published"][name])
                truth = Counter(tuple(map(plain, row)) for row in connection.execute(history.select(schema, subject)))
                copied = Counter(tuple(map(plain, row)) for row in rows)
                assert_same_rows(f"seed {seed}, night {night}, {name} at {found['position']}", copied, truth)
    can = [subject for subject in subjects if way == "images" or subject.name not in READ_IN_THE_VIEW]
    assert rolled >= NIGHTS * (len(can) - 1)
    primary.query(f"DROP SCHEMA {schema} CASCADE")


def _finished(run: Pipeline, chance: random.Random) -> dict[str, Any]:
    """What the run publishes; some steps are done twice, as by a task that was cleared."""
    run.extract_delta()
    if chance.random() < 0.3:
        run.extract_delta()
    run.consolidate()
    if chance.random() < 0.3:
        run.consolidate()
    return run.found["consolidate"]
