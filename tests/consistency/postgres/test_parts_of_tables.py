"""A copy of a part of a table has exactly the rows that fulfil its condition at the run's position, in every run.

Writers move rows into and out of the part all the time. The oracle is PostgreSQL's own recovery to that LSN, and
Python, which evaluates the condition on each row.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.jobs.snapshot import reread_passes
from airflow_provider_cdc.sources.postgres.chunking import key_ranges
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.comparing import assert_same_rows
from tests.consistency.parts import Part
from tests.consistency.postgres import history
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.consistency.writing import Writing
from tests.seeds import seeds

NIGHTS = 1
WAYS = {"images": "FULL", "keys": "DEFAULT"}
SETTINGS = [
    (VERSIONS[-1], "images"),
    (VERSIONS[-1], "keys"),
    pytest.param((VERSIONS[0], "images"), marks=pytest.mark.long),
    pytest.param((VERSIONS[0], "keys"), marks=pytest.mark.long),
]

PARTS = (
    Part(
        "integers",
        "amount > 0 AND NOT big < 0 OR ok",
        lambda row: (row["amount"] > 0 and row["big"] is not None and row["big"] >= 0) or bool(row["ok"]),
        ("at",),
    ),
    Part(
        "integers",
        "at >= '2026-03-15 00:00:00+00' OR id < 0",
        lambda row: (row["at"] is not None and row["at"] >= datetime(2026, 3, 15)) or row["id"] < 0,
    ),
    Part(
        "names",
        "name LIKE '%ï%' OR body = 'short' OR small IS NULL AND ratio < 1",
        lambda row: "ï" in row["name"] or row["body"] == "short" or (row["small"] is None and row["ratio"] < 1),
        ("body",),
    ),
    Part(
        "pairs",
        "day < '1960-01-01' AND number BETWEEN 10 AND 90 OR code = 'AA      '",
        lambda row: (
            (row["day"] is not None and row["day"] < date(1960, 1, 1) and 10 <= row["number"] <= 90)
            or row["code"] == "AA      "
        ),
    ),
    Part("blobs", "body IS NOT NULL", lambda row: row["body"] is not None, ("flags",)),
    Part("parted", "place > 10 AND note IS NOT NULL", lambda row: row["place"] > 10 and row["note"] is not None),
    Part("parted", "id IN (1, 2, 3, 4, 5)", lambda row: 1 <= row["id"] <= 5, ("note",)),
    # Ranges of the key, and columns that the condition uses but that are not published.
    Part(
        "integers",
        "id BETWEEN 20 AND 90 AND ok IS NOT NULL OR id = -7",
        lambda row: (20 <= row["id"] <= 90 and row["ok"] is not None) or row["id"] == -7,
        ("amount",),
    ),
    Part("names", "TRUE", lambda row: True, ("small",)),
    Part(
        "parted",
        "place >= 5 AND place < 12 AND note <> 'short'",
        lambda row: 5 <= row["place"] < 12 and row["note"] is not None and row["note"] != "short",
        ("id",),
    ),
    Part("keyless", "a < 20", lambda row: row["a"] < 20, ("c",)),
    Part("keyless", "b = 'same' OR a >= 30", lambda row: row["b"] == "same" or row["a"] >= 30),
    Part("keyless", "c > 1", lambda row: row["c"] is not None and row["c"] > 1, ("b",)),
)


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def setting(request: pytest.FixtureRequest) -> tuple[int, str]:
    """The version of the server, and the way."""
    found: tuple[int, str] = request.param
    return found


@pytest.fixture(scope="module")
def primary(setting: tuple[int, str]) -> Iterator[PostgresServer]:
    with primary_of(setting[0]) as server:
        yield server


def plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.parametrize("seed", seeds())
def test_no_row_of_a_part_differs_after_any_night(
    seed: int,
    setting: tuple[int, str],
    primary: PostgresServer,
    recovery: PostgresRecovery,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(f"{setting} {seed}")
    schema = f"t_{uuid.uuid4().hex[:12]}"
    primary.query(f"CREATE SCHEMA {schema}")
    with primary.connect() as connection:
        history.create(connection, schema, seed, chance.choice([200, 400]), identity=WAYS[setting[1]])
    drawn = {part.table: part for part in chance.sample(PARTS, len(PARTS))}
    where = {f"{schema}.{part.table}": part.where for part in drawn.values()}
    columns = {f"{schema}.{part.table}": part.columns for part in drawn.values() if part.columns}
    # Every other one goes through passes, however few keys were touched.
    monkeypatch.setattr(reread_passes, "FEW_KEYS", chance.choice([0, 30, reread_passes.FEW_KEYS]))
    if chance.random() < 0.7:
        # As of tables so large that an index pays.
        monkeypatch.setattr(key_ranges, "_analyzed", lambda *_: True)
        monkeypatch.setattr(key_ranges, "_through_index", lambda connection, leaf, pushed: chance.choice([1, 40, 200]))

    changed = 0
    for night in range(NIGHTS + 1):
        writers = Writing(history.write(primary.connect, schema, 0.01), seed + 100 * night, 4)
        vacuums = Writing(history.vacuum(primary.connect, schema), seed, 1)
        with writers, vacuums:
            writers.wait_for_more(50)
            run = Pipeline(
                spark,
                settings_of(primary),
                tmp_path.as_uri(),
                [f"{schema}.{subject.name}" for subject in history.SUBJECTS],
                run_id=f"202601{night + 1:02}T000000Z-{seed:08}",
                chunk_rows=chance.choice([15, 60, 1000]),
                chunk_pause=chance.choice([0, 0.02]),
                standing_slot="night",
                refresh="auto",
                where=where,
                columns=columns,
            )
            run.record()
            assert not night or any(plan.base for plan in run.plans), [plan.reason for plan in run.plans]
            run.snapshot()
        run.extract_delta()
        found = run.consolidate()
        recovery.advance_to(found["position"])
        with recovery.connect() as connection:
            connection.execute("SET TimeZone TO 'UTC'")
            for subject in history.SUBJECTS:
                name, part = f"{schema}.{subject.name}", drawn[subject.name]
                columns_found, rows = published(found["published"][name])
                kept = [one for one in subject.names if not part.columns or one in (*part.columns, *subject.key)]
                assert columns_found == kept
                every = [tuple(map(plain, row)) for row in connection.execute(history.select(schema, subject))]
                truth = part.of(subject.names, every, subject.key)
                copied = Counter(tuple(map(plain, row)) for row in rows)
                place = f"seed {seed}, night {night}, {name} where {part.where} at {found['position']}"
                assert_same_rows(place, copied, truth)
                changed += len(rows)
    assert changed
    with session(settings_of(primary)) as connection:
        standing = name_of(connection, "night")
    slots.drop(settings_of(primary), standing, standing)
    primary.query(f"DROP SCHEMA {schema} CASCADE")
