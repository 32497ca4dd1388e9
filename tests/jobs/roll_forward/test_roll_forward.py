"""A copy that is rolled forward every night equals a full copy at the same position."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.parquet import splice, writer
from airflow_provider_cdc.core.parquet.splice import SplicedFile
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import CopyMismatch, FileDamaged, ManifestError
from airflow_provider_cdc.jobs.apply import touched_rows
from airflow_provider_cdc.jobs.begin import initial_position
from airflow_provider_cdc.jobs.begin.base_selection import choose
from airflow_provider_cdc.jobs.certificate import build
from airflow_provider_cdc.jobs.roll_forward import merge as images
from airflow_provider_cdc.jobs.roll_forward import plan as forward
from airflow_provider_cdc.jobs.roll_forward import task as roll
from airflow_provider_cdc.sinks.registry import open_sink
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, Entry, History, HistorySource, random_history, tables
from tests.seeds import seeds

FIRST, SECOND = (f"2026010{day}T000000Z-00000000" for day in (1, 2))


def nights(make: MakeRunner, source: HistorySource, rng: random.Random, name: str, count: int) -> Iterator[Runner]:
    """Runs of one lake, each at a later position; each table of the last copy is rolled forward, as a rule."""
    length = len(source.history.entries)
    positions = sorted(rng.choice(range(length // 4, length)) for _ in range(count + 1))
    last: dict[str, str] = {}
    for number, position in enumerate(positions):
        source.end = rng.randint(position, length)
        run_id = f"202601{number + 1:02}T000000Z-00000000"
        bases = {table: run for table, run in last.items() if rng.random() < 0.85}
        runner = make(source, position, name=name, run_id=run_id, bases=bases)
        runner.all()
        last = dict.fromkeys(NAMES, run_id)
        yield runner


def make_source(seed: int, length: int = 90) -> tuple[HistorySource, random.Random]:
    rng = random.Random(seed)
    return HistorySource(random_history(rng, length), seed, segment_length=rng.choice([3, 7, 20, 1000])), rng


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
@pytest.mark.parametrize("small", [0, 500, 10**6])
def test_chains_of_nights(here: MakeRunner, monkeypatch: pytest.MonkeyPatch, small: int, seed: int) -> None:
    monkeypatch.setattr(forward, "SMALL_BYTES", small)
    source, rng = make_source(small % 7 * 100 + seed)
    # Rows that do not fit into memory go into separate files.
    monkeypatch.setattr(roll, "HELD_BYTES", rng.choice([0, 400, 10**6]))
    for number, night in enumerate(nights(here, source, rng, "lake", 4)):
        assert night.published() == night.expected(), f"seed {seed}, night {number}"
    for older in night.run.parent().folders():
        assert Storage(night.target.uri_of(f"{NAMES[0]}/snapshot={older}")).files(), "a copy stands alone"


@pytest.mark.slow
def test_chains_of_nights_on_spark(on_spark: MakeRunner) -> None:
    source, rng = make_source(11, 200)
    for night in nights(on_spark, source, rng, "lake", 2):
        assert night.published() == night.expected()


def two_nights(make: MakeRunner, *entries: Entry, first: int) -> Runner:
    """The second of two runs; the first one, at ``first``, is done."""
    source = HistorySource(History(list(entries)), 1)
    source.end = first
    make(source, first, run_id=FIRST).all()
    source.end = len(entries)
    return make(source, len(entries), run_id=SECOND, bases=dict.fromkeys(NAMES, FIRST))


def inserted(*rows: Any, table: int = 0) -> Entry:
    return Entry("commit", tuple((table, None, row) for row in rows))


ROWS = [(number, "new", "x" * 9) for number in range(0, 40, 2)]


def test_untouched_files_are_the_same_bytes_and_stay_when_the_copy_before_goes(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), inserted((1, "paid", "")), first=1)
    night.all()
    before, now = (Storage(night.target.uri_of(f"{NAMES[0]}/snapshot={run}")) for run in (FIRST, SECOND))
    kept = set(before.files()) & set(now.files())
    assert len(kept) == len(before.files()) - 1
    assert all(Path(before.path(name)).samefile(now.path(name)) for name in kept)
    night.target.delete_folder(f"{NAMES[0]}/snapshot={FIRST}")
    assert night.published() == night.expected()


def test_the_head_lists_all_files_of_the_copy(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), inserted((1, "paid", "")), first=1)
    night.all()
    head = night.target.read_json(f"{NAMES[0]}/_latest.json")
    folder = Storage(head["path"])
    assert [file["name"] for file in head["files"]] == folder.files()
    assert {file["name"]: file["bytes"] for file in head["files"]} == folder.sizes()
    assert sum(file["rows"] for file in head["files"]) == head["rows"] == len(ROWS) + 1


def test_rows_go_into_the_file_whose_keys_they_lie_among(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), inserted((5, "paid", ""), (33, "paid", "")), first=1)
    found = night.all()
    assert found.files_rewritten == 2


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        pytest.param(inserted((50, "new", "")), "which has", id="insert"),
        pytest.param(
            Entry("commit", ((0, (2, "new", "x" * 9), (2, "paid", "")),)), "differs from the old row", id="update"
        ),
        pytest.param(Entry("commit", ((0, (2, "new", "x" * 9), None),)), "already has", id="delete"),
    ],
)
def test_a_change_that_the_log_lost_stops_the_run(here: MakeRunner, lost: Entry, message: str) -> None:
    later = {"insert": (50, "new", ""), "update": (2, "paid", ""), "delete": None}
    row = lost.changes[0][2]
    change = Entry("commit", ((0, row, (row[0], "paid", "later")),)) if row else inserted((2, "new", "again"))
    assert row in later.values()
    night = two_nights(here, inserted(*ROWS), lost, change, first=1)
    # The server changed the row without a trace in the log.
    night.source.history.entries[1] = Entry("commit")
    with pytest.raises(CopyMismatch, match=message):
        night.all()
    assert night.target.read_json(f"{NAMES[0]}/_latest.json")["run_id"] == FIRST


@pytest.mark.parametrize("known", [True, False], ids=["taken apart", "of another writer"])
def test_a_file_in_which_rows_were_changed_keeps_all_rows_whoever_wrote_it(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    encoded: list[int] = []

    def counting(self: SplicedFile, columns: Any) -> None:
        encoded.append(columns.num_columns)
        write(self, columns)

    write = SplicedFile.write
    monkeypatch.setattr(SplicedFile, "write", counting)
    changes = tuple((0, row, (row[0], "paid", row[2])) for row in (ROWS[0], ROWS[7], ROWS[11], ROWS[-1]))
    night = two_nights(here, inserted(*ROWS), Entry("commit", changes), first=1)
    if not known:
        now = splice._written_now
        monkeypatch.setattr(splice, "_written_now", lambda schema: now(schema.remove(0)))
    night.all()
    assert night.published() == night.expected()
    # The row groups of a file with four changed rows: each is unchanged, or has one of three columns encoded again.
    assert (set(encoded) == {0, 1} and encoded.count(1) >= 3) if known else not encoded


def codecs(folder: Storage, name: str) -> list[set[str]]:
    """The codecs of the columns of each row group of a file."""
    metadata = pq.read_metadata(folder.path(name))
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return [{group.column(number).compression for number in range(group.num_columns)} for group in groups]


@pytest.mark.parametrize("spliced", [True, False])
def test_a_copy_of_another_codec_is_rolled_forward_and_kept_files_keep_their_codec(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, spliced: bool
) -> None:
    source = HistorySource(History([inserted(*ROWS)]), 1)
    source.end = 1
    here(source, 1, run_id=FIRST, lake=LakeOptions(compression="snappy")).all()
    # The row of one file is updated, or a row between its rows is inserted: then the whole file is written again.
    change = (0, ROWS[7], (ROWS[7][0], "paid", "x" * 9)) if spliced else (0, None, (ROWS[7][0] + 1, "paid", ""))
    source.history.entries.append(Entry("commit", (change,)))
    source.end = 2
    night = here(source, 2, run_id=SECOND, bases=dict.fromkeys(NAMES, FIRST), lake=LakeOptions(compression="zstd"))
    night.all()
    assert night.published() == night.expected()
    before, now = (Storage(night.target.uri_of(f"{NAMES[0]}/snapshot={run}")) for run in (FIRST, SECOND))
    assert all(one == {"SNAPPY"} for name in before.files() for one in codecs(before, name))
    kept = set(before.files()) & set(now.files())
    assert len(kept) == len(before.files()) - 1
    written = [group for name in set(now.files()) - kept for group in codecs(now, name)]
    # In a spliced file, only the replaced column of the row group with the changed row has the new codec.
    mixed = {"SNAPPY", "ZSTD"}
    assert written.count(mixed) == 1 if spliced else all(group == {"ZSTD"} for group in written)
    # Engines that share no code with the package read both codecs, also in one file.
    files = [now.path(name) for name in now.files()]
    for rows in (duckdb.read_parquet(files).fetchall(), pl.read_parquet(files).rows()):
        assert Counter(rows) == night.expected()[0]


def test_a_keyless_row_that_the_copy_lacks_stops_the_run(here: MakeRunner) -> None:
    night = two_nights(
        here, inserted((1, "p"), table=2), inserted((2, "q"), table=2), Entry("commit", ((2, (2, "q"), None),)), first=1
    )
    night.source.history.entries[1] = Entry("commit")
    with pytest.raises(CopyMismatch, match="does not have"):
        night.all()


def test_a_base_file_that_is_gone_or_damaged_stops_the_run(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), Entry("commit", ((0, ROWS[0], None),)), first=1)
    folder = Storage(night.target.uri_of(f"{NAMES[0]}/snapshot={FIRST}"))
    read, delta, consolidate = night.steps()
    read()
    delta()
    whole = {name: Path(folder.path(name)).read_bytes() for name in folder.files()}
    for name, data in whole.items():
        path = Path(folder.path(name))
        path.unlink()
        with pytest.raises(FileDamaged, match="is gone"):
            consolidate()
        path.write_bytes(data[:-1])
        with pytest.raises(FileDamaged, match="bytes, not"):
            consolidate()
        path.write_bytes(data)
    # The file that is rewritten is read completely, and compared with its checksum.
    for name, data in whole.items():
        at = data.index(b"x" * 9) if b"x" * 9 in data else 4
        Path(folder.path(name)).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(FileDamaged, match="checksum"):
        consolidate()
    assert night.target.read_json(f"{NAMES[0]}/_latest.json")["run_id"] == FIRST
    for name, data in whole.items():
        Path(folder.path(name)).write_bytes(data)
    consolidate()
    assert night.published() == night.expected()


def test_a_base_that_is_another_than_the_manifest_names_stops_the_run(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), Entry("commit", ((0, ROWS[0], None),)), first=1)
    read, delta, consolidate = night.steps()
    read()
    delta()
    base = night.run.parent().folder(FIRST)
    published = base.read_json("published.json")
    record = base.read_json(published["record"])
    record["rewound"] = {}
    base.write_json("published.json", {**published, "record": records.write_named(base, "commit/files", record)})
    with pytest.raises(ManifestError):
        consolidate()


def test_the_head_may_move_on_while_a_run_rolls_forward(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), Entry("commit", ((0, ROWS[0], None),)), first=1)
    for one in night.steps()[:2]:
        one()
    third = here(night.source, 2, run_id="20260103T000000Z-00000000")
    third.all()
    found = night.steps()[2]()
    assert found.rows[NAMES[0]] == len(ROWS) - 1
    assert night.target.read_json(f"{NAMES[0]}/_latest.json")["run_id"] == third.run.uri.rpartition("/")[2]


def test_a_crash_while_files_are_put_in_place_leaves_the_last_copy(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = two_nights(here, inserted(*ROWS), Entry("commit", ((0, ROWS[0], None),)), first=1)
    before = night.published()
    adopt = Storage.adopt
    left = [2]

    def dying(self: Storage, name: str, new_name: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        adopt(self, name, new_name)

    monkeypatch.setattr(Storage, "adopt", dying)
    with pytest.raises(KeyboardInterrupt):
        night.all()
    assert night.published() == before
    monkeypatch.setattr(Storage, "adopt", adopt)
    night.all()
    assert night.published() == night.expected()


def test_nothing_is_read_of_tables_that_are_rolled_forward(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    night = two_nights(here, inserted(*ROWS), Entry("commit", ((0, ROWS[0], None),)), first=1)
    monkeypatch.setattr(HistorySource, "reader", None)
    monkeypatch.setattr(HistorySource, "plan_chunks", None)
    monkeypatch.setattr(HistorySource, "bound_reads", None)
    night.all()
    assert night.published() == night.expected()


class Rolling(HistorySource):
    """One of which preflight may ask what has to hold since a copy: all of it does."""

    def refusals_since(
        self,
        identity: Any,
        position: Position,
        tables: Sequence[Table],
        to: Any,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
        evolutions: dict[TableName, Evolution] | None = None,
    ) -> dict[TableName, str]:
        return {}


def flipped(path: Path, at: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])


@pytest.mark.slow
def test_damage_that_leaves_a_file_its_size_is_found_wherever_it_lies(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS[:3]), Entry("commit", ((0, ROWS[0], None),)), first=1)
    for step in night.steps()[:2]:
        step()
    folder = night.target.folder(NAMES[0], f"snapshot={FIRST}")
    (name,) = folder.files()
    path = Path(folder.path(name))
    whole = path.read_bytes()
    for at in range(0, len(whole), 13):
        flipped(path, at)
        with pytest.raises(FileDamaged, match="of the copy that is rolled forward") as damage:
            night.steps()[2]()
        assert path.name in damage.value.where, f"byte {at}"
        path.write_bytes(whole)
    night.all()
    assert night.published() == night.expected()


def test_a_copy_that_was_found_to_be_damaged_is_read_in_full_by_the_next_run(here: MakeRunner) -> None:
    history = History([inserted(*ROWS), Entry("commit", ((0, ROWS[0], None),))])
    source = Rolling(history, 1)
    source.end = 1
    first = here(source, 1, run_id=FIRST)
    first.all()
    source.end = 2
    night = here(source, 2, run_id=SECOND, bases=dict.fromkeys(NAMES, FIRST))
    folder = night.target.folder(NAMES[0], f"snapshot={FIRST}")
    for name in folder.files():
        flipped(Path(folder.path(name)), 8)
    options, scratch = StepOptions(chunk_rows=10, refresh="auto"), night.run.parent().uri

    def planned() -> list[TablePlan]:
        plans = [TablePlan(table.name, "lock" if table.keyless else "watermark", "") for table in tables()]
        return choose(source, open_sink("parquet", night.target), scratch, plans, options)

    before = planned()
    assert {plan.base for plan in before} == {FIRST}
    with pytest.raises(FileDamaged):
        night.all()
    found = planned()
    assert [plan.base for plan in found] == ["", FIRST, FIRST, FIRST]
    assert "read in full: the last copy is damaged: a file of the copy" in found[0].reason
    # After preflight and the tasks after it are cleared, the same run reads the table in full.
    assert initial_position._goes_on(Run.load(night.run), source, before, options)
    assert not initial_position._goes_on(Run.load(night.run), source, found, options)
    night = here(source, 2, run_id=SECOND, bases=dict.fromkeys(NAMES[1:], FIRST))
    assert Run.load(night.run).generation == 2
    night.all()
    assert night.published() == night.expected()


def test_rows_that_contradict_the_log_in_whole_files_are_no_damage(here: MakeRunner) -> None:
    row = (50, "new", "")
    night = two_nights(here, inserted(*ROWS), inserted(row), Entry("commit", ((0, row, None),)), first=1)
    night.source.history.entries[1] = Entry("commit")
    with pytest.raises(CopyMismatch):
        night.all()
    assert night.run.parent().folder(FIRST).folders("damaged") == []


def test_rows_that_grow_far_beyond_a_row_group_are_parted(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = [(number, "paid", "y" * 400) for number, _, _ in ROWS]
    changes = [(0, before, after) for before, after in zip(ROWS, grown, strict=True)]
    more = inserted((1, "new", "z" * 400), (37, "new", ""))
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 100)
    night = two_nights(here, inserted(*ROWS), Entry("commit", tuple(changes)), more, first=1)
    for module in (writer, roll):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 500)
    monkeypatch.setattr(roll, "MOST_SORTED_BYTES", 500)
    monkeypatch.setattr(build, "DECODED_ROWS", 1)
    decode, sizes = night.source.decode_images, []

    def decoded(table: Table, images: pa.BinaryArray, nulled: Any = None) -> pa.RecordBatch:
        sizes.append(len(images))
        return decode(table, images, nulled)

    monkeypatch.setattr(night.source, "decode_images", decoded)
    night.all()
    assert night.published() == night.expected()
    assert max(sizes) == 1
    folder = Storage(night.target.read_json(f"{NAMES[0]}/_latest.json")["path"])
    groups = [
        metadata.row_group(number)
        for name in folder.files()
        for metadata in [pq.read_metadata(folder.path(name))]
        for number in range(metadata.num_row_groups)
    ]
    assert max(group.num_rows for group in groups) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2000, 10**6])
def test_of_what_a_window_changed_in_one_file_memory_holds_a_part(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    grown = [(number, "paid", "y" * 400) for number, _, _ in ROWS]
    changes = [(0, before, after) for before, after in zip(ROWS, grown, strict=True)]
    more = inserted(*((number, "new", "z" * 300) for number in range(1, 40, 2)))
    night = two_nights(here, inserted(*ROWS), Entry("commit", tuple(changes)), more, first=1)
    monkeypatch.setattr(images, "HELD_BYTES", most)
    monkeypatch.setattr(roll, "HELD_BYTES", most)
    hold, held = images.Images._hold, []

    def holding(self: images.Images, batches: Any, keys: Any) -> None:
        hold(self, batches, keys)
        held.append(sum(len(value.as_py()) for column in self._held.columns for value in column))

    monkeypatch.setattr(images.Images, "_hold", holding)
    night.all()
    assert night.published() == night.expected()
    assert max(held) <= max(most, 1500)
    assert len(held) > 5 or most > 1000


def test_touched_keys_are_held_in_portions_that_fit_into_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than one array Arrow would make two, and the keys in the second one would not count."""
    monkeypatch.setattr(touched_rows, "TOUCHED_BYTES", 1000)
    batches = [pa.record_batch({"key": pa.array([b"k" * size], pa.binary())}) for size in (300, 400, 5000, 300, 0, 1)]
    assert [[len(one["key"][0].as_py()) for one in some] for some in touched_rows.in_portions(batches, 100)] == [
        [300, 400],
        [5000],
        [300, 0, 1],
    ]
    assert [len(some) for some in touched_rows.in_portions(batches[:2], 1)] == [1, 1]
    assert not list(touched_rows.in_portions([batches[0].slice(1)], 1))
