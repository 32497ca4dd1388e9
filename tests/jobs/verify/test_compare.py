"""Comparing two tables names exactly the keys that differ, however many rows there are."""

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.digest.digest import digest
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.verify import compare
from airflow_provider_cdc.jobs.verify.compare import Side
from airflow_provider_cdc.jobs.verify.rows import RangeRows, RowsToRead
from tests.jobs.verify.planting import SPARK, without_spark

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("value", pa.float64())])


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def side_of(folder: Path, rows: list[tuple[Any, ...]], key: tuple[str, ...], chance: random.Random) -> Side:
    """The rows in a random order, in files."""
    folder.mkdir()
    rows = chance.sample(rows, len(rows))
    ends = sorted(chance.randrange(len(rows) + 1) for _ in range(2))
    for number, part in enumerate((rows[: ends[0]], rows[ends[0] : ends[1]], rows[ends[1] :])):
        pq.write_table(table_of(part), folder / f"{number}.parquet", row_group_size=17)
    pieces = tuple(RangeRows(Storage(folder.as_uri()), f"{number}.parquet") for number in range(3))
    return Side(RowsToRead(folder.name, SCHEMA, key), pieces)


@pytest.mark.parametrize("searched", [500_000, 4])
@pytest.mark.parametrize("key", [("id", "kind"), ()])
def test_random_tables(searched: int, key: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(compare, "SEARCHED_ROWS", searched)
    chance = random.Random(len(key))
    for count in range(6):
        left = [(number // 2, "ab"[number % 2], chance.choice([None, 0.0, number / 3])) for number in range(900)]
        if not key:
            left += chance.choices(left, k=50)
        right = list(left)
        for _ in range(count):
            at = chance.randrange(len(right))
            match chance.choice(["lose", "double", "add", "change"]):
                case "lose":
                    right.pop(at)
                case "double":
                    right.append(right[at])
                case "add":
                    right.append((10_000 + at, "a", 1.0))
                case "change":
                    right[at] = (*right[at][:2], -7.0)
        left_side = side_of(tmp_path / f"{count}l", left, key, chance)
        right_side = side_of(tmp_path / f"{count}r", right, key, chance)
        found = compare.compare(SPARK, left_side, right_side, 100)
        by_key: list[dict[Any, Counter[Any]]] = []
        for rows in (left, right):
            counted: dict[Any, Counter[Any]] = defaultdict(Counter)
            for row in rows:
                counted[row[: len(key) or 3]][row] += 1
            by_key.append(counted)
        differing = {one for one in by_key[0] | by_key[1] if by_key[0].get(one) != by_key[1].get(one)}
        assert found.rows == (len(left), len(right))
        assert found.digests == (digest(table_of(left)).hex, digest(table_of(right)).hex)
        if searched > 4 or not differing:
            assert {tuple(one.key.values()) for one in found.differences} == {
                tuple(None if value is None else str(value) for value in one) for one in differing
            }
            assert (found.keys_differing, found.parts_unsearched) == (len(differing), 0)
        else:
            # Of each of the many parts, at least one is searched.
            assert 1 <= found.keys_differing <= len(differing)
            assert found.keys_differing + found.parts_unsearched >= len(differing) - 1


def test_years_that_python_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL has dates and times before the year 1 and after the year 9999."""
    without_spark(monkeypatch)
    times, dates = pa.timestamp("us", "UTC"), pa.list_(pa.date32())
    schema = pa.schema([("at", times), ("dates", dates)])
    sides = []
    for name, day in (("left", 2_000_000_000), ("right", 3)):
        keys = pa.array([-(2**60), 2**62], pa.int64()).cast(times)
        days = pa.ListArray.from_arrays([0, 1, 2], pa.array([0, day], pa.int32()).cast(pa.date32()))
        pq.write_table(pa.table([keys, days], schema), tmp_path / name)
        sides.append(Side(RowsToRead(name, schema, ("at",)), (RangeRows(Storage(tmp_path.as_uri()), name),)))
    (found,) = compare.compare(SPARK, sides[0], sides[1], 100).differences
    assert (found.kind, found.columns) == ("changed", ("dates",))
    assert found.key["at"] == "4,611,686,018,427,387,904 microseconds after 1970-01-01"
    assert found.left[0]["dates"] == "['2,000,000,000 days after 1970-01-01']"
