"""A copy that is rolled forward every night has, row for row, the tables of each night's position.

The oracle is MySQL itself: its own tools replay exactly the transactions of that position on a second server.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness import oracle
from harness.lake_readers import delete_files, iceberg_rows
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.mysql import history
from tests.consistency.writing import Writing
from tests.seeds import chain_length, seeds

NIGHTS = chain_length(2)


@pytest.mark.slow
@pytest.mark.timeout(120 * (NIGHTS + 1))
@pytest.mark.parametrize("seed", seeds(0))
def test_no_row_differs_after_any_night(
    seed: int, mysql: MysqlServer, mysql_oracle: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    lake_format = "iceberg" if seed % 2 else "parquet"
    # Few rows of each file change, so the files get position deletes.
    quiet = seed % 4 == 3
    mysql.query("FLUSH BINARY LOGS")
    first_log = mysql.query("SHOW BINARY LOG STATUS")[0][0]
    applied = mysql.query("SELECT @@global.gtid_executed")[0][0]
    mysql_oracle.query(f"DROP DATABASE IF EXISTS `{schema}`")
    mysql_oracle.query(f"CREATE DATABASE `{schema}`")
    with mysql.connect() as connection:
        history.create(connection, schema, seed, rows=4000 if quiet else chance.choice([20, 200, 600]))

    rolled = deletes = 0
    earlier: list[tuple[str, str, Counter[tuple[Any, ...]]]] = []
    for night in range(NIGHTS + 1):
        with Writing(
            history.write(mysql.connect, schema, pause=3 if quiet else 0.02), seed + 100 * night, chance.choice([3, 4])
        ) as writers:
            writers.wait_for_more(chance.randrange(1, 10 if quiet else 60))
            if chance.random() < 0.3:
                mysql.query("FLUSH BINARY LOGS")
            run_id = f"202601{night + 1:02}T000000Z-{seed:08}"
            run = Pipeline(
                spark,
                settings_of(mysql),
                tmp_path.as_uri(),
                # Sometimes a table is left out for a night, and joins again.
                [f"{schema}.*", *([f"!{schema}.pairs"] if chance.random() < 0.2 else [])],
                run_id=run_id,
                chunk_rows=chance.choice([400, 1000] if quiet else [15, 60, 1000]),
                refresh="auto",
                format=lake_format,
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
            if lake_format == "iceberg":
                columns, copied = _iceberg_copy(tmp_path, name, run_id)
                truth = _as_in_iceberg(oracle.rows_at(mysql_oracle, name, columns))
                earlier.append((name, run_id, truth))
                deletes += delete_files(tmp_path, name, run_id)
            else:
                columns, rows = published(uri)
                truth = oracle.rows_at(mysql_oracle, name, columns)
                copied = Counter(tuple(map(oracle.plain, row)) for row in rows)
            place = f"seed {seed}, night {night}, {name} at {initial}"
            assert not truth - copied, f"{place}: missing {list(truth - copied)[:3]}"
            assert not copied - truth, f"{place}: extra {list(copied - truth)[:3]}"
    assert 2 * rolled >= NIGHTS * len(history.SUBJECTS)
    assert deletes or not quiet, "no file got position deletes"
    for name, run_id, truth in earlier:
        assert _iceberg_copy(tmp_path, name, run_id)[1] == truth, f"seed {seed}: {name} of {run_id} has changed"


def _iceberg_copy(target: Path, name: str, run_id: str) -> tuple[list[str], Counter[tuple[Any, ...]]]:
    """Return the column names and the rows of a run's copy, read by DuckDB."""
    columns, rows = iceberg_rows(target, name, run_id)
    return columns, _as_in_iceberg(Counter(tuple(map(oracle.plain, row)) for row in _with_times(columns, rows)))


def _with_times(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows in which the column ``span``, of type TIME, is a duration. Iceberg has it in microseconds."""
    place = columns.index("span") if "span" in columns else -1
    return [
        tuple(
            timedelta(microseconds=cell) if index == place and cell is not None else cell
            for index, cell in enumerate(row)
        )
        for row in rows
    ]


def _as_in_iceberg(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Return rows with integers as text: Iceberg has unsigned integers of 64 bits as decimals."""
    return Counter({tuple(str(cell) if isinstance(cell, int) else cell for cell in row): n for row, n in rows.items()})


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
