"""A copy that is rolled forward every night has, row for row, the tables of each night's position.

The oracle is MySQL itself: its own tools replay exactly the transactions of that position on a second server.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness import oracle
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.mysql import history
from tests.consistency.writing import Writing
from tests.seeds import chain_length, seeds

NIGHTS = chain_length(2)


@pytest.mark.timeout(120 * (NIGHTS + 1))
@pytest.mark.parametrize("seed", seeds(0))
def test_no_row_differs_after_any_night(
    seed: int, mysql: MysqlServer, mysql_oracle: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    mysql.query("FLUSH BINARY LOGS")
    first_log = mysql.query("SHOW BINARY LOG STATUS")[0][0]
    applied = mysql.query("SELECT @@global.gtid_executed")[0][0]
    mysql_oracle.query(f"DROP DATABASE IF EXISTS `{schema}`")
    mysql_oracle.query(f"CREATE DATABASE `{schema}`")
    with mysql.connect() as connection:
        history.create(connection, schema, seed, rows=chance.choice([20, 200, 600]))

    rolled = 0
    for night in range(NIGHTS + 1):
        with Writing(
            history.write(mysql.connect, schema, pause=0.02), seed + 100 * night, chance.choice([3, 4])
        ) as writers:
            writers.wait_for_more(chance.randrange(1, 60))
            if chance.random() < 0.3:
                mysql.query("FLUSH BINARY LOGS")
            run = Pipeline(
                spark,
                settings_of(mysql),
                tmp_path.as_uri(),
                # Sometimes a table is left out for a night, and joins again.
                [f"{schema}.*", *([f"!{schema}.pairs"] if chance.random() < 0.2 else [])],
                run_id=f"202601{night + 1:02}T000000Z-{seed:08}",
                chunk_rows=chance.choice([15, 60, 1000]),
                refresh="auto",
            )
            here = mysql.query("SHOW BINARY LOG STATUS")[0][0]
            initial = run.record()
            rolled += sum(bool(plan.base) for plan in run.plans)
            assert not night or any(plan.base for plan in run.plans), [plan.reason for plan in run.plans]
            if chance.random() < 0.3:
                mysql.query("FLUSH BINARY LOGS")
            run.snapshot()
        tables = _finished(run, chance)

        (wanted,) = mysql.query("SELECT GTID_SUBTRACT(%s, %s)", (initial, applied))[0]
        oracle.replay(mysql, mysql_oracle, wanted.replace("\n", ""), first_log)
        applied, first_log = initial, here
        for name, uri in tables.items():
            columns, rows = published(uri)
            truth = oracle.rows_at(mysql_oracle, name, columns)
            copied = Counter(tuple(map(oracle.plain, row)) for row in rows)
            place = f"seed {seed}, night {night}, {name} at {initial}"
            assert not truth - copied, f"{place}: missing {list(truth - copied)[:3]}"
            assert not copied - truth, f"{place}: extra {list(copied - truth)[:3]}"
    assert 2 * rolled >= NIGHTS * len(history.SUBJECTS)


def _finished(run: Pipeline, chance: random.Random) -> dict[str, str]:
    """What the run publishes; some steps are done twice, as by a task that was cleared."""
    run.extract_delta()
    if chance.random() < 0.3:
        run.extract_delta()
    run.consolidate()
    if chance.random() < 0.3:
        run.consolidate()
    tables: dict[str, str] = run.found["consolidate"]["published"]
    return tables
