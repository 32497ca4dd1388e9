"""A copy of a part of a table has exactly the rows that fulfil its condition at the run's position, in every run.

Writers move rows into and out of the part all the time. The oracle is MySQL, which replays the transactions of that
position, and Python, which evaluates the condition on each row.
"""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.lake import open_dataset, read_changes, read_latest
from harness import oracle
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.comparing import assert_same_rows
from tests.consistency.mysql import history
from tests.consistency.parts import Part
from tests.consistency.writing import Writing
from tests.seeds import seeds

NIGHTS = 2

PARTS = (
    Part(
        "integers",
        "amount > 0 AND (big IS NULL OR big >= 9223372036854775808)",
        lambda row: Decimal(row["amount"]) > 0 and (row["big"] is None or row["big"] >= 2**63),
        ("text",),
    ),
    Part(
        "integers",
        "at >= '2026-03-15 00:00:00Z' OR text LIKE 'x%x' OR id IN (1, 2, 3)",
        lambda row: (
            (row["at"] is not None and row["at"] >= "2026-03-15")
            or (row["text"] is not None and len(row["text"]) > 1 and row["text"][0] + row["text"][-1] == "xx")
            or row["id"] in (1, 2, 3)
        ),
    ),
    Part(
        "names",
        "mood IN ('calm', 'über') OR NOT (name < 'a' OR ratio > 0.001)",
        lambda row: row["mood"] in ("calm", "über") or not (row["name"] < "a" or row["ratio"] > 0.001),
    ),
    Part(
        "pairs",
        "day BETWEEN '1930-01-01' AND '1970-01-01' AND NOT code = 'aa' OR span < '-10:00:00'",
        lambda row: (
            (row["day"] is not None and "1930-01-01" <= row["day"] <= "1970-01-01" and row["code"] != "aa")
            or (row["span"] is not None and row["span"].startswith("-") and int(row["span"][1:].split(":")[0]) >= 10)
        ),
        ("span",),
    ),
    Part("blobs", "flags >= 256 AND body IS NULL", lambda row: row["flags"] >= 256 and row["body"] is None, ("made",)),
    Part(
        "moments",
        "amount <> 0 AND at < '2026-03-29 02:30:00'",
        lambda row: Decimal(row["amount"]) != 0 and row["at"] < "2026-03-29 02:30:00",
        ("doubled",),
    ),
    Part("parted", "day >= '2026-04-01'", lambda row: row["day"] >= "2026-04-01", ("note",)),
    # Ranges of the key, and columns that the condition uses but that are not published.
    Part(
        "integers",
        "id BETWEEN 20 AND 90 AND text IS NOT NULL OR id = 1000000005",
        lambda row: (20 <= row["id"] <= 90 and row["text"] is not None) or row["id"] == 1000000005,
        ("amount",),
    ),
    Part("names", "TRUE", lambda row: True, ("mood",)),
    Part(
        "moments",
        "amount >= 0 AND amount < 20 AND at > '2026-03-29' AND hidden IS NOT NULL",
        lambda row: 0 <= Decimal(row["amount"]) < 20 and row["at"] > "2026-03-29" and row["hidden"] is not None,
        ("tags",),
    ),
    Part("parted", "id > 50 AND id <= 220", lambda row: 50 < row["id"] <= 220, ("note",)),
    Part("keyless", "a >= 20", lambda row: row["a"] >= 20, ("c",)),
    Part("keyless", "b = 'same' OR a < 10", lambda row: row["b"] == "same" or row["a"] < 10),
    Part("keyless", "b IS NOT NULL", lambda row: row["b"] is not None, ("b",)),
    Part("keyless", "TRUE", lambda row: True, ("b", "c")),
)


@pytest.mark.timeout(150 * (NIGHTS + 1))
@pytest.mark.parametrize("seed", seeds())
def test_no_row_of_a_part_differs_after_any_night(
    seed: int, mysql: MysqlServer, mysql_oracle: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    mysql.query("FLUSH BINARY LOGS")
    first_log = mysql.query("SHOW BINARY LOG STATUS")[0][0]
    applied = mysql.query("SELECT @@global.gtid_executed")[0][0]
    mysql_oracle.query(f"DROP DATABASE IF EXISTS `{schema}`")
    mysql_oracle.query(f"CREATE DATABASE `{schema}`")
    with mysql.connect() as connection:
        history.create(connection, schema, seed, chance.choice([200, 600]))
    drawn = {part.table: part for part in chance.sample(PARTS, len(PARTS))}
    where = {f"{schema}.{part.table}": part.where for part in drawn.values()}
    columns = {f"{schema}.{part.table}": part.columns for part in drawn.values() if part.columns}

    changed = 0
    before: dict[str, Counter[tuple[object, ...]]] = {}
    for night in range(NIGHTS + 1):
        with Writing(history.write(mysql.connect, schema, pause=0.02), seed + 100 * night, 4) as writers:
            writers.wait_for_more(50)
            run = Pipeline(
                spark,
                settings_of(mysql),
                tmp_path.as_uri(),
                [f"{schema}.*"],
                run_id=f"202601{night + 1:02}T000000Z-{seed:08}",
                chunk_rows=chance.choice([15, 60, 1000]),
                chunk_pause=chance.choice([0, 0.02]),
                refresh="auto",
                changes=True,
                where=where,
                columns=columns,
            )
            here = mysql.query("SHOW BINARY LOG STATUS")[0][0]
            initial = run.record()
            assert not night or all(plan.base for plan in run.plans), [plan.reason for plan in run.plans]
            if chance.random() < 0.5:
                mysql.query("FLUSH BINARY LOGS")
            run.snapshot()
        run.extract_delta()
        tables = run.consolidate()["published"]

        (wanted,) = mysql.query("SELECT GTID_SUBTRACT(%s, %s)", (initial, applied))[0]
        oracle.replay(mysql, mysql_oracle, wanted.replace("\n", ""), first_log)
        applied, first_log = initial, here
        for subject in history.SUBJECTS:
            name, part = f"{schema}.{subject.name}", drawn[subject.name]
            names = [row[0] for row in mysql.query(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
                "ORDER BY ORDINAL_POSITION", (schema, subject.name))]  # fmt: skip
            truth = part.of(names, oracle.rows_at(mysql_oracle, name, names).elements(), subject.key)
            found, rows = published(tables[name])
            assert found == [one for one in names if not part.columns or one in (*part.columns, *subject.key)]
            copied = part_of(rows)
            assert_same_rows(f"seed {seed}, night {night}, {name} where {part.where} at {initial}", copied, truth)
            changed += len(rows)
            latest = read_latest(tmp_path.as_uri(), name, where=part.where, columns=part.columns)
            assert latest is not None
            assert (latest.run_id, latest.rows) == (run.run.uri.rpartition("/")[2], len(rows))
            assert read_latest(tmp_path.as_uri(), name) is None
            if night:
                led = read_changes(tmp_path.as_uri(), name, where=part.where, columns=part.columns)
                replayed = Counter(before[name])
                for one in open_dataset(led).to_table().to_pylist():
                    replayed.subtract(part_of([tuple(one["before"].values())] if one["before"] else []))
                    replayed.update(part_of([tuple(one["after"].values())] if one["after"] else []))
                assert min(replayed.values(), default=0) >= 0
                assert_same_rows(f"seed {seed}, night {night}, changes of {name} where {part.where}", +replayed, copied)
            before[name] = copied
    assert changed


def part_of(rows: list[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(map(oracle.plain, row)) for row in rows)


@pytest.mark.long
def test_a_part_as_of_the_past_has_what_was_in_it_then(
    mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    mysql.query(f"CREATE TABLE {schema}.k (v INT, w INT)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 1), (2, 5), (3, 9), (4, 9)")
    mysql.query(f"INSERT INTO {schema}.k VALUES (1, 1), (5, 2), (5, 3), (9, 4)")
    then = str(mysql.query("SELECT @@global.gtid_executed")[0][0]).replace("\n", "")
    for table in ("t", "k"):
        mysql.query(f"UPDATE {schema}.{table} SET v = 10 - v")
        mysql.query(f"DELETE FROM {schema}.{table} WHERE v = 1")
        mysql.query(f"INSERT INTO {schema}.{table} VALUES (7, 7), (8, 6)")
    run = Pipeline(
        spark,
        settings_of(mysql),
        tmp_path.as_uri(),
        [f"{schema}.*"],
        as_of=then,
        where={f"{schema}.*": "v >= 5"},
        columns={f"{schema}.k": ["v"]},
    )
    assert run.record() == then
    tables = run.finish()["published"]
    assert part_of(published(tables[f"{schema}.t"])[1]) == Counter({(2, 5): 1, (3, 9): 1, (4, 9): 1})
    assert part_of(published(tables[f"{schema}.k"])[1]) == Counter({(5,): 2, (9,): 1})
