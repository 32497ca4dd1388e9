"""A copy as of a past time or GTID set has exactly the rows of that moment, whatever was written since.

The oracle is MySQL itself: its own tools replay exactly the transactions of that position on a second server.
``sources/mysql/log/positions/test_prefixes.py`` compares the position of a time with mysqlbinlog.
"""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.mysql import history
from tests.consistency.mysql.replayed import Replayed
from tests.consistency.writing import Writing
from tests.seeds import seeds


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_no_row_differs_from_the_past(
    seed: int, mysql: MysqlServer, mysql_oracle: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    replayed = Replayed(mysql, mysql_oracle, schema, seed, chance.choice([20, 200, 600]))
    # For definitions, the server has times in whole seconds only.
    time.sleep(1.1)
    points: list[str] = []
    with Writing(history.write(mysql.connect, schema), seed, chance.choice([4, 5, 6])) as writers:
        for _ in range(3):
            writers.wait_for_more(chance.randrange(1, 60))
            points.append(datetime.now(UTC).isoformat())
            points.append(str(mysql.query("SELECT @@global.gtid_executed")[0][0]).replace("\n", ""))
            if chance.random() < 0.3:
                mysql.query("FLUSH BINARY LOGS")
        writers.wait_for_more(chance.choice([20, 100]))
        # As a rule it goes back beyond some files, and further writes come while it is read.
        run = Pipeline(
            spark,
            settings_of(mysql),
            tmp_path.as_uri(),
            [f"{schema}.*"],
            consistency=chance.choice(["auto", "auto", "lock"]),
            chunk_rows=chance.choice([15, 60, 1000]),
            chunk_pause=chance.choice([0, 0.01]),
            as_of=chance.choice(points),
        )
        initial = run.record()
        run.snapshot()
    run.extract_delta()
    replayed.check(run.consolidate()["published"], initial)
    assert run.found["extract_delta"]["transactions"] > 0, f"seed {seed}: nothing was written since"


@pytest.mark.long
def test_one_time_is_one_copy_whenever_it_is_made(
    mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)")
        cursor.execute("CREATE TABLE b (v INT)")
        cursor.execute("INSERT INTO a SELECT n, n FROM (SELECT 1 n UNION SELECT 2 UNION SELECT 3) s")
        cursor.execute("INSERT INTO b VALUES (1), (1), (2)")
        time.sleep(1.1)
        midnight = datetime.now(UTC).isoformat()
        copies = []
        for number in range(3):
            if number == 0:
                # Nothing later is committed yet: it waits until something is.
                threading.Timer(2, lambda: mysql.query(f"UPDATE {schema}.a SET v = 100")).start()
            run = Pipeline(
                spark, settings_of(mysql), (tmp_path / str(number)).as_uri(), [f"{schema}.*"], as_of=midnight
            )
            initial = run.record()
            found = run.finish()["published"]
            copies.append(
                (initial, sorted(published(found[f"{schema}.a"])[1]), sorted(published(found[f"{schema}.b"])[1]))
            )
            cursor.execute("DELETE FROM a WHERE id = %s", (number,))
            cursor.execute("INSERT INTO b VALUES (2), (3)")
            cursor.execute("FLUSH BINARY LOGS")
        assert copies[0][1:] == ([(1, 1), (2, 2), (3, 3)], [(1,), (1,), (2,)])
        assert copies[1:] == [copies[0], copies[0]]
