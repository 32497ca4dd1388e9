"""New rows from the log, for copies that are rolled forward, compared with the tables themselves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log.segments import open_segment
from harness.postgres_server import PostgresServer
from tests.sources.postgres.decode.reading import describe, select
from tests.sources.postgres.log.reading import Follow, Run

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, n int, large text);
CREATE TABLE p (large text, id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF p FOR VALUES FROM (0) TO (20);
CREATE TABLE high (n int, id int NOT NULL, gone int, large text);
ALTER TABLE high DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION high FOR VALUES FROM (20) TO (100);
ALTER TABLE a REPLICA IDENTITY FULL; ALTER TABLE p REPLICA IDENTITY FULL;
ALTER TABLE low REPLICA IDENTITY FULL; ALTER TABLE high REPLICA IDENTITY FULL
"""
LARGE = "(SELECT string_agg(md5(i::text || random()), '') FROM generate_series(1, {0}) i)"


@pytest.mark.slow
def test_what_rows_became_and_what_was_left_out_of_line(
    postgres: PostgresServer, database: str, follow: Follow, run: Run
) -> None:
    run(*SETUP.split(";"))
    chance = random.Random(1)
    for name in ("a", "p"):
        run(f"INSERT INTO {name} (id, n, large) SELECT i, i, {LARGE.format(200)} FROM generate_series(0, 39) i")
    reading = follow("a", "p")
    for _ in range(150):
        name, one, other = chance.choice("ap"), chance.randrange(50), chance.randrange(50)
        large = LARGE.format(chance.choice([0, 1, 100, 300]))
        statement = chance.choice(
            [
                f"UPDATE {name} SET n = n + 1 WHERE id = {one}",
                f"UPDATE {name} SET large = {large} WHERE id = {one}",
                f"UPDATE {name} SET id = {other}, n = -1 WHERE id = {one} AND NOT EXISTS (TABLE_OF)",
                f"DELETE FROM {name} WHERE id = {one}",
                f"INSERT INTO {name} (id, n, large) VALUES ({one}, 0, {large}) ON CONFLICT DO NOTHING",
            ]
        )
        reading.execute(statement.replace("TABLE_OF", f"SELECT FROM {name} WHERE id = {other}"))
    end = reading.now()
    tracked = [TrackedTable(index, table, end, forward=True) for index, table in enumerate(reading.tables)]
    found: dict[str, dict[bytes, Any]] = {"a": {}, "p": {}}
    with open_segment(reading.settings, reading.segment(end), reading.initial, tracked) as reader:
        for batch in reader:
            table = reading.tables[batch["table"][0].as_py()]
            left = batch.filter(batch["after"].is_valid())
            rows = decode_images(table, left["after"])
            # The key of the row that is left is the key that was touched.
            assert row_bytes.encode(rows, table.key).equals(left["key"])
            found[table.name.name] |= dict(zip(left["key"].to_pylist(), rows.to_pylist(), strict=True))
            gone = batch.filter(batch["after"].is_null())["key"].to_pylist()
            found[table.name.name] |= dict.fromkeys(gone)
    for name, leaves in (("a", ["a"]), ("p", ["low", "high"])):
        truth: dict[bytes, Any] = {}
        for leaf in leaves:
            rows = select(postgres, database, describe(postgres, database, leaf))
            keys = row_bytes.encode(rows, ["id"]).to_pylist()
            truth |= dict(zip(keys, rows.to_pylist(), strict=True))
        assert len(found[name]) > 20
        for key, row in found[name].items():
            assert row == truth.get(key), f"{name}, {key!r}"
