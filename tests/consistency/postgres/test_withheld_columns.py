"""A column that is left out is in no file of a run, whatever its type, its privileges and the kind of run.

The rows are compared with the result of SELECT at the run's position, and every file that the run leaves is searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.storage.records import encode
from harness.pipeline import Pipeline, published_counts, settings_of
from tests.consistency.postgres.nights import Nights

SECRET = "Withheld"
COLUMNS = {f"public.{name}": ["n"] for name in ("keyed", "keyless", "parted", "spread")}
WHERE = {"public.parted": "n >= 0"}
SETUP = f"""
CREATE TABLE keyed (id int PRIMARY KEY, secret text NOT NULL DEFAULT '{SECRET}', n int, r regclass DEFAULT 'keyed');
CREATE TABLE keyless (secret text NOT NULL DEFAULT '{SECRET}', n int, r regclass DEFAULT 'keyed');
CREATE TABLE parted (id int, secret text NOT NULL DEFAULT '{SECRET}', n int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (20);
CREATE TABLE parted_high (n int, secret text NOT NULL DEFAULT '{SECRET}', id int NOT NULL);
ALTER TABLE parted ATTACH PARTITION parted_high FOR VALUES FROM (20) TO (100);
INSERT INTO keyed (id, n) SELECT i, i FROM generate_series(1, 40) i;
INSERT INTO keyless (n) SELECT i % 7 FROM generate_series(1, 40) i;
INSERT INTO parted (id, n) SELECT i, i FROM generate_series(1, 40) i
"""
SPREAD = f"""
CREATE TABLE spread (id int PRIMARY KEY, secret text NOT NULL DEFAULT '{SECRET}', n int) PARTITION BY HASH (id);
CREATE TABLE spread_0 PARTITION OF spread FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE spread_1 PARTITION OF spread FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE spread REPLICA IDENTITY FULL;
ALTER TABLE spread_0 REPLICA IDENTITY FULL;
ALTER TABLE spread_1 REPLICA IDENTITY FULL;
INSERT INTO spread (id, n) SELECT i, i FROM generate_series(1, 40) i
"""
WRITES = (
    f"UPDATE keyed SET secret = '{SECRET} since', n = n + 100 WHERE id % 3 = 0",
    f"UPDATE keyed SET secret = repeat('{SECRET}', 9000) WHERE id % 5 = 0",
    "UPDATE keyed SET n = 7 WHERE id % 10 = 0",
    "DELETE FROM keyed WHERE id = 4; INSERT INTO keyed (id, n) VALUES (90, 90)",
    f"UPDATE keyless SET secret = '{SECRET} since' WHERE n = 1; DELETE FROM keyless WHERE n = 2",
    "INSERT INTO keyless (n) SELECT 70 FROM generate_series(1, 3)",
    "UPDATE parted SET id = id + 20 WHERE id BETWEEN 15 AND 17 AND id + 20 > 40",
    "UPDATE parted SET n = -n WHERE id % 4 = 0; DELETE FROM parted WHERE id % 9 = 0",
)
READ = {"keyed": "id, n", "keyless": "n", "parted": "id, n", "spread": "id, n"}
FULL = "ALTER TABLE {0} REPLICA IDENTITY FULL"
TABLES = ("keyed", "keyless", "parted", "parted_low", "parted_high")
LEAVES = ("keyed", "keyless", "parted_low", "parted_high")


def rows_of(nights: Nights, *names: str) -> dict[str, list[Any]]:
    found = {}
    for name in names:
        columns = READ[name]
        where = f" WHERE {WHERE[f'public.{name}']}" if f"public.{name}" in WHERE else ""
        found[name] = sorted(nights.server.query(f"SELECT {columns} FROM {name}{where}"))
    return found


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """What every file holds, decompressed."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield str(path), path.read_bytes().decode("latin-1")
        with suppress(pa.ArrowException):
            yield str(path), f"{pq.read_metadata(path)} {pq.read_table(path).to_pylist()}"
        for reader in (pa.ipc.open_file, pa.ipc.open_stream):
            with suppress(pa.ArrowException), pa.OSFile(str(path)) as file:
                yield str(path), str(reader(file).read_all().to_pylist())


def assert_withheld(folder: Path, run: Pipeline) -> None:
    for name, text in texts(folder):
        assert SECRET not in text, name
    assert SECRET not in json.dumps([run.found, encode(run.plans)], default=str)


def check(run: Pipeline, wanted: dict[str, list[Any]]) -> None:
    for name, uri in run.found["consolidate"]["published"].items():
        columns, rows = published_counts(uri)
        own = name.removeprefix("public.")
        assert columns == READ[own].split(", ")
        assert sorted(rows.elements()) == wanted[own], name


@pytest.mark.slow
@pytest.mark.parametrize("way", ["images", "keys"])
def test_a_column_that_the_role_may_not_read_is_withheld(way: str, nights: Nights, spark: SparkSession) -> None:
    nights.do(*SETUP.split(";"), "CREATE ROLE copier LOGIN REPLICATION PASSWORD 'p'")
    nights.do(*(f"GRANT SELECT (ctid, {'n' if name == 'keyless' else 'id, n'}) ON {name} TO copier" for name in LEAVES))
    if way == "images":
        nights.do(*map(FULL.format, TABLES))
        nights.do(f"CREATE PUBLICATION given FOR TABLE {', '.join(LEAVES)}")
    else:
        # What the publication leaves out is not even sent.
        nights.do("CREATE PUBLICATION given FOR TABLE keyed (id, n), parted_low (id, n), parted_high (id, n)")
    run = Pipeline(
        spark,
        replace(settings_of(nights.server, "copier", "p"), options={"publication": "given"}),
        (nights.folder / "lake").as_uri(),
        ["public.*"],
        where=WHERE,
        columns={name: own for name, own in COLUMNS.items() if name != "public.spread"},
    )
    names = ("keyed", "keyless", "parted")
    before = rows_of(nights, *names)
    run.record()
    nights.do(*(part for write in WRITES for part in write.split(";")))
    run.snapshot()
    run.extract_delta()
    assert_withheld(nights.folder, run)
    run.consolidate()
    assert_withheld(nights.folder, run)
    check(run, before if way == "images" else rows_of(nights, *names))
    run.release()


@pytest.mark.slow
def test_a_column_that_is_left_out_is_withheld_night_after_night(nights: Nights) -> None:
    """Also from feeds of the changes, and from copies as of the past."""
    nights.do(*SETUP.split(";"), *SPREAD.split(";"), *map(FULL.format, TABLES))
    tables = ["public.keyed", "public.keyless", "public.spread"]
    chosen: dict[str, Any] = {"tables": tables, "columns": {name: COLUMNS[name] for name in tables}}
    first = nights.night("full", **chosen)
    first.record()
    first.finish()
    moment = nights.ask("SELECT pg_current_wal_flush_lsn()::text")
    names = ("keyed", "keyless", "spread")
    then = rows_of(nights, *names)
    nights.do(*(part for write in WRITES for part in write.split(";")), "UPDATE spread SET id = id + 100, n = -n")
    now = rows_of(nights, *names)
    second = nights.night("changes", changes=True, **chosen)
    second.record()
    second.finish()
    assert {bool(plan.base) for plan in second.plans} == {True}
    check(second, now)
    past = nights.night("full", as_of=moment, **chosen)
    past.record()
    past.snapshot()
    past.extract_delta()
    assert_withheld(nights.folder, past)
    past.consolidate()
    check(past, then)
    assert_withheld(nights.folder, second)
