"""Whatever the writers do, the published tables are those of the initial position, row for row.

The oracle is MySQL itself: its own tools replay exactly the transactions of the initial position on a second server.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.consistency.mysql import history
from tests.consistency.mysql.replayed import Replayed
from tests.consistency.writing import Writing
from tests.seeds import seeds


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_no_row_differs_from_the_initial_position(
    seed: int, mysql: MysqlServer, mysql_oracle: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    replayed = Replayed(mysql, mysql_oracle, schema, seed, chance.choice([20, 200, 600]))
    run = Pipeline(
        spark,
        settings_of(mysql),
        tmp_path.as_uri(),
        [f"{schema}.*"],
        consistency=chance.choice(["auto", "auto", "lock"]),
        chunk_rows=chance.choice([15, 60, 1000]),
        chunk_pause=chance.choice([0, 0.01, 0.03]),
    )

    with Writing(history.write(mysql.connect, schema), seed, chance.choice([4, 5, 6])) as writers:
        writers.wait_for_more(50)
        initial = run.record()
        # Early reads see nearly the initial position, late ones much more.
        writers.wait_for_more(chance.choice([10, 10, 100]))
        if chance.random() < 0.5:
            mysql.query("FLUSH BINARY LOGS")
        run.snapshot()
        writers.wait_for_more(chance.choice([0, 50]))
    run.extract_delta()
    replayed.check(run.consolidate()["published"], initial)
    assert run.found["extract_delta"]["transactions"] > 0, f"seed {seed}: nothing was written during the run"
