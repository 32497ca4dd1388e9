"""A table that is read in one part is not at 0 % until it ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_provider_cdc.core.chunk import Chunk
from airflow_provider_cdc.core.manifest import RunTable
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import Column, Table, TableName
from airflow_provider_cdc.jobs import under_way as module
from airflow_provider_cdc.jobs.parts import Part
from airflow_provider_cdc.jobs.under_way import LARGE_BYTES, UNDER_WAY, UnderWay, under_way
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history

WEIGHT = 1000 * LARGE_BYTES
TABLES = [RunTable(Table(TableName("d", "t"), (Column("v", "int", False),), rows=1000), "lock", "")]


def part(number: int, weight: int = WEIGHT, rows: int = 0) -> Part:
    return Part(number, 0, (Chunk(0, rows=rows),), weight)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    return Storage(tmp_path.as_uri())


def test_a_large_part_says_how_far_it_is_while_files_are_to_become_durable_together(folder: Storage) -> None:
    parts = [part(0), part(1, rows=100), part(2)]
    with folder.together() as own:
        first, second = UnderWay(own, parts[0]), UnderWay(own, parts[1])
        first.add(250, 200)
        first.add(250, 0)
        second.add(30, 30)
        assert [*under_way(folder, parts, TABLES)] == [230, pytest.approx(0.8 * WEIGHT)]


def test_an_estimate_that_is_too_low_does_not_make_a_part_done(folder: Storage) -> None:
    UnderWay(folder, part(0)).add(5000, 5000)
    assert [*under_way(folder, [part(0)], TABLES)] == [5000, pytest.approx(0.99 * WEIGHT)]


def test_the_next_try_of_a_part_begins_at_nothing(folder: Storage) -> None:
    UnderWay(folder, part(0)).add(500, 500)
    UnderWay(folder, part(0))
    assert under_way(folder, [part(0)], TABLES) == (0, 0.0)


def test_small_parts_write_nothing(folder: Storage) -> None:
    UnderWay(folder, part(0, LARGE_BYTES)).add(500, 500)
    assert not folder.files(UNDER_WAY)


def test_a_store_that_fails_holds_nothing_up(folder: Storage) -> None:
    (Path(folder.path()) / "chunks").write_text("a file where the folder would be")
    UnderWay(folder, part(0)).add(500, 500)
    assert under_way(folder, [part(0)], TABLES) == (0, 0.0)
    (Path(folder.path()) / "chunks").unlink()
    for data in ({"read": "x", "rows": 1}, [1], {}, 7, None):
        folder.note_json(f"{UNDER_WAY}/{part(0).name}.json", data)
        assert under_way(folder, [part(0)], TABLES) == (0, 0.0)


def test_each_part_tells_of_what_it_read_and_what_it_publishes(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "LARGE_BYTES", -1)
    runner = here(HistorySource(random_history(random.Random(5), 60), 5), 25)
    found = runner.steps()[0]()
    told = [runner.run.read_json(name) for name in runner.run.files(UNDER_WAY)]
    assert sum(one["rows"] for one in told) == found.rows > 0
    assert sum(one["read"] for one in told) >= found.rows
    runner.all()
    assert not runner.run.files(UNDER_WAY)
