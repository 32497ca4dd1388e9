"""A table that is read in one part, and a log of one segment, show progress before they end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.jobs.extract_delta.windows import BACK
from airflow_provider_cdc.jobs.runtime import progress as module
from airflow_provider_cdc.jobs.runtime.progress import (
    LARGE_BYTES,
    PARTS,
    PartPiece,
    PieceWatch,
    UnderWay,
    forget,
    piece_of_segment,
    under_way,
)
from airflow_provider_cdc.jobs.snapshot.parts import Part, piece_of_part
from airflow_provider_cdc.sources.api.window import LogSegment
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history

WEIGHT = 1000 * LARGE_BYTES
TABLES = [RunTable(Table(TableName("d", "t"), (Column("v", "int", False),), rows=1000), "lock", "")]


def piece(number: int, weight: int = WEIGHT, rows: int = 0) -> PartPiece:
    return piece_of_part(Part(number, 0, (Chunk(0, rows=rows),), weight), TABLES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    return Storage(tmp_path.as_uri())


def test_a_large_part_says_how_far_it_is_while_files_are_to_become_durable_together(folder: Storage) -> None:
    pieces = [piece(0), piece(1, rows=100), piece(2)]
    with folder.together() as own:
        first, second = UnderWay(own, pieces[0]), UnderWay(own, pieces[1])
        first.add(250, 200)
        first.add(250, 0)
        second.add(30, 30)
        assert [*under_way(folder, PARTS, pieces)[:2]] == [230, pytest.approx(0.8 * WEIGHT)]


def test_an_estimate_that_is_too_low_does_not_make_a_part_done(folder: Storage) -> None:
    UnderWay(folder, piece(0)).add(5000, 5000)
    assert [*under_way(folder, PARTS, [piece(0)])[:2]] == [5000, pytest.approx(0.99 * WEIGHT)]


def test_the_next_try_of_a_part_begins_at_nothing(folder: Storage) -> None:
    UnderWay(folder, piece(0)).add(500, 500)
    UnderWay(folder, piece(0))
    assert under_way(folder, PARTS, [piece(0)]) == (0, 0.0, 0)


def test_small_parts_say_something_only_if_they_take_long(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow source is at 0 % for minutes otherwise, where many small parts are read by one Spark task."""
    small = piece(0, LARGE_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(module, "EVERY_SECONDS", 600.0)
        UnderWay(folder, small).add(500, 500)
    assert not folder.files(PARTS)
    UnderWay(folder, small).add(500, 500)
    assert [*under_way(folder, PARTS, [small])] == [500, pytest.approx(0.5 * LARGE_BYTES), 0]
    forget(folder, PARTS)
    assert under_way(folder, PARTS, [small]) == (0, 0.0, 0)


def test_pieces_that_are_read_and_not_yet_written_are_told_apart(folder: Storage) -> None:
    pieces = [piece(0), piece(1)]
    watch = PieceWatch(folder, PARTS, lambda: pieces)
    UnderWay(folder, pieces[0]).add(1000, 1000)
    assert [*watch.poll()] == [1000, pytest.approx(0.99 * WEIGHT)]
    assert watch.all_read == 0
    # The other one is done.
    del pieces[1]
    watch.poll()
    assert watch.all_read == 1


def test_a_store_that_fails_holds_nothing_up(folder: Storage) -> None:
    (Path(folder.path()) / "chunks").write_text("a file where the folder would be")
    UnderWay(folder, piece(0)).add(500, 500)
    assert under_way(folder, PARTS, [piece(0)]) == (0, 0.0, 0)
    (Path(folder.path()) / "chunks").unlink()
    for data in ({"read": "x", "rows": 1}, [1], {}, 7, None):
        folder.note_json(piece(0).name, data)
        assert under_way(folder, PARTS, [piece(0)]) == (0, 0.0, 0)


def test_each_part_tells_of_what_it_read_and_what_it_publishes(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "LARGE_BYTES", -1)
    runner = here(HistorySource(random_history(random.Random(5), 60), 5), 25)
    found = runner.steps()[0]()
    told = [runner.run.read_json(name) for name in runner.run.files("chunks/under-way")]
    assert sum(one["rows"] for one in told) == found.rows > 0
    assert sum(one["read"] for one in told) >= found.rows
    runner.all()
    assert not runner.run.files("chunks/under-way")


def test_each_segment_tells_how_far_it_is_read(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "LARGE_BYTES", -1)
    runner = here(HistorySource(random_history(random.Random(5), 60), 5), 25)
    snapshot, extract_delta, *_ = runner.steps()
    snapshot()
    found = extract_delta()
    told = {name: runner.run.read_json(name) for name in runner.run.files("delta/under-way")}
    assert found.segments == len(told) > 1
    # A task writes its progress before it has read everything, so the files may count fewer rows.
    assert 0 < sum(one["rows"] for one in told.values()) <= found.row_images
    # Those before the window, in which something was prepared, have negative numbers.
    names = {piece_of_segment(BACK, LogSegment(number, "", 0, None)).name for number in range(-100, 100)}
    assert set(told) <= names
