"""Whatever the writers do, the published tables are those of the initial position, row for row.

The oracle is MySQL itself: its own tools replay exactly the transactions of the initial position on a second server.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness import oracle
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.mysql import history
from tests.consistency.writing import Writing

HISTORIES = int(os.environ.get("CDC_HISTORIES", "20"))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_row_differs_from_the_initial_position(
    seed: int, mysql: MysqlServer, mysql_oracle: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    mysql.query("FLUSH BINARY LOGS")
    first_log = mysql.query("SHOW BINARY LOG STATUS")[0][0]
    before_history = mysql.query("SELECT @@global.gtid_executed")[0][0]
    # The oracle replays the history from its first statement; the schema that the fixture made is not in it.
    mysql_oracle.query(f"DROP DATABASE IF EXISTS `{schema}`")
    mysql_oracle.query(f"CREATE DATABASE `{schema}`")
    with mysql.connect() as connection:
        history.create(connection, schema, seed, rows=chance.choice([20, 200, 600]))
    run = Pipeline(
        spark,
        settings_of(mysql),
        tmp_path.as_uri(),
        [f"{schema}.*"],
        consistency=chance.choice(["auto", "auto", "lock"]),
        chunk_rows=chance.choice([15, 60, 1000]),
        chunk_pause=chance.choice([0, 0.01, 0.03]),
    )

    with Writing(history.write(mysql.connect, schema), seed, chance.choice([4, 5, 6])):
        time.sleep(0.3)
        initial = run.record()
        time.sleep(chance.choice([0, 0, 0.5]))  # early reads see nearly the initial position, late ones much more
        if chance.random() < 0.5:
            mysql.query("FLUSH BINARY LOGS")
        run.snapshot()
        time.sleep(chance.choice([0, 0.2]))
    run.extract_delta()
    tables = run.consolidate()["published"]

    (wanted,) = mysql.query("SELECT GTID_SUBTRACT(%s, %s)", (initial, before_history))[0]
    oracle.replay(mysql, mysql_oracle, wanted.replace("\n", ""), first_log)
    for subject in history.SUBJECTS:
        name = f"{schema}.{subject.name}"
        columns, rows = published(tables[name])
        truth = oracle.rows_at(mysql_oracle, name, columns)
        copied = Counter(tuple(map(oracle.plain, row)) for row in rows)
        missing, extra = truth - copied, copied - truth
        assert not missing, f"seed {seed}, {name} at {initial}: missing {list(missing)[:3]}, instead {list(extra)[:3]}"
        assert not extra, f"seed {seed}, {name} at {initial}: extra {list(extra)[:3]}"
    assert run.found["extract_delta"]["transactions"] > 0, f"seed {seed}: nothing was written during the run"
