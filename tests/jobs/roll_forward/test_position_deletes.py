"""Iceberg tables whose touched rows are deleted by position equal the source after any number of nights.

DuckDB, Polars and PyIceberg read the tables, and share no code with the package.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.parquet import writer
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CopyMismatch, FileDamaged
from airflow_provider_cdc.jobs.begin.base_selection import choose
from airflow_provider_cdc.jobs.roll_forward import merge, task
from airflow_provider_cdc.jobs.roll_forward import plan as forward
from airflow_provider_cdc.sinks.registry import open_sink
from tests.interrupting import Interrupted, commits_fail
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import KEYLESS, NAMES, Entry, History, HistorySource, random_history, tables
from tests.jobs.iceberg_nights import files_of, run_id_of, seen, snapshot_of
from tests.jobs.roll_forward.test_roll_forward import Rolling, flipped, inserted
from tests.seeds import chain_length, seeds
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.test_foreign import compact

ORDERS = NAMES[0]
Change = tuple[int, Any, Any]


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the shares of rows below which a file gets deletes."""

    def set_shares(touched: float, deleted: float) -> None:
        monkeypatch.setattr(task, "TOUCHED_SHARE", touched)
        monkeypatch.setattr(task, "DELETED_SHARE", deleted)

    return set_shares


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_chains_of_nights_with_deletes_by_position(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, shares: Any, seed: int
) -> None:
    rng = random.Random(1000 + seed)
    length = 120
    source = HistorySource(random_history(rng, length), seed, segment_length=rng.choice([3, 7, 20, 1000]))
    # With the real shares, no file of a few rows would get deletes.
    shares(rng.choice([0.6, 2.0]), rng.choice([0.5, 0.8, 2.0]))
    monkeypatch.setattr(merge, "MERGED_AT", rng.choice([2, 3]))
    monkeypatch.setattr(merge, "MERGED_BYTES", rng.choice([0, 2000, 10**6]))
    monkeypatch.setattr(forward, "SMALL_BYTES", rng.choice([0, 500, 10**6]))
    count = chain_length(5)
    positions = sorted(rng.sample(range(length // 6, length), count))
    with_deletes = 0
    for number, position in enumerate(positions):
        source.end = rng.randint(position, length)
        bases = {name: run_id_of(number - 1) for name in NAMES if number and rng.random() < 0.9}
        night = here(source, position, run_id=run_id_of(number), bases=bases, format="iceberg")
        night.all()
        assert [seen(night, name) for name in NAMES] == night.expected(), f"seed {seed}, night {number}"
        with_deletes += sum(len(files_of(night, name)[1]) for name in NAMES)
    assert with_deletes
    for number in (1, count // 2):
        rows = source.history.state(positions[number])
        assert [seen(night, name, run_id_of(number)) for name in NAMES] == rows, "an older copy changed"


def row_of(number: int, state: str = "new", note: str = "") -> tuple[Any, ...]:
    # The first copy is in the order of the text of the rows: all numbers have three digits.
    return 100 + number, state, note


ROWS = [row_of(number) for number in range(100)]
VISITS = [(1, "p")] * 60 + [(2, "q")] * 40


@pytest.fixture
def nights(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runner]:
    """Makes the next night of one lake, before which these rows of the orders changed. The first copy has one file of
    them with ten row groups of ten rows, and such a file of the keyless visits."""
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(writer.ParquetWriter.__init__, "__defaults__", (10**6,))
    monkeypatch.setattr(forward, "ROLL_BYTES", 10**9)
    source = Rolling(History([inserted(*ROWS), inserted(*VISITS, table=KEYLESS)]), 1)
    source.end = 2
    here(source, 2, run_id=run_id_of(0), format="iceberg").all()
    number = 0

    def next_night(*changes: Change, base: int | None = None) -> Runner:
        nonlocal number
        base = number if base is None else base
        number += 1
        source.history.entries.append(Entry("commit", tuple(changes)))
        source.end = len(source.history.entries)
        bases = dict.fromkeys(NAMES, run_id_of(base))
        return here(source, source.end, run_id=run_id_of(number), bases=bases, format="iceberg")

    return next_night


@pytest.mark.slow
def test_the_table_names_the_codec_of_the_last_copy_to_other_writers(here: MakeRunner) -> None:
    source = HistorySource(History([inserted(*ROWS)]), 1)
    for number, codec in enumerate(("zstd", "snappy")):
        source.history.entries.append(Entry("commit", tuple(updated(number))))
        source.end = len(source.history.entries)
        bases = dict.fromkeys(NAMES, run_id_of(0)) if number else None
        night = here(
            source,
            source.end,
            run_id=run_id_of(number),
            bases=bases,
            format="iceberg",
            lake=LakeOptions(compression=codec),
        )
        night.all()
        check(night)
        table, _ = snapshot_of(night, ORDERS)
        assert table.properties["write.parquet.compression-codec"] == codec
        written = [name for name in files_of(night)[0] if run_id_of(number) in name]
        groups = [pq.read_metadata(name.removeprefix("file://")).row_group(0) for name in written]
        # The changed column of a spliced file has the new codec.
        assert codec.upper() in {group.column(at).compression for group in groups for at in range(group.num_columns)}


def updated(*numbers: int, state: str = "paid", before: str = "new") -> list[Change]:
    return [(0, row_of(number, before), row_of(number, state)) for number in numbers]


def check(night: Runner) -> None:
    """The engines read the rows of the source, and the cut has their number."""
    rows = [seen(night, name) for name in NAMES]
    assert rows == night.expected()
    cuts = plain_catalog(night.target).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    counts = {row["table"]: row["rows"] for row in cuts if row["run_id"] == night.run.uri.rpartition("/")[2]}
    assert [counts[name] for name in NAMES] == [found.total() for found in rows]


def positions(night: Runner) -> list[list[int]]:
    """The positions in each delete file of the orders."""
    return [
        pq.read_table(entry.data_file.file_path.removeprefix("file://"))["pos"].to_pylist()
        for entry in files_of(night)[1].values()
    ]


@pytest.mark.slow
def test_a_file_that_is_touched_every_night_has_one_delete_file_until_its_share(nights: Callable[..., Runner]) -> None:
    first_and_last = [0, 9, 10, 99]
    night = nights(*updated(*first_and_last))
    found = night.all()
    assert (found.files_rewritten, found.rows[ORDERS]) == (0, 100)
    check(night)
    assert positions(night) == [first_and_last]
    (base,) = files_of(night)[1]
    # A deletion, a changed key, and a row that was deleted and is back: all in the same file. The file of new versions
    # is small, so it is written again.
    changes = [(0, row_of(50), None), (0, row_of(51), row_of(851)), *updated(0, before="paid", state="new")]
    night = nights(*changes, (0, row_of(99, "paid"), None))
    night.all()
    check(night)
    assert positions(night) == [[0, 9, 10, 50, 51, 99]]
    night = nights((0, None, row_of(50, "back")), (0, None, row_of(51, "back")), *updated(20, 21))
    night.all()
    check(night)
    assert [len(found) for found in positions(night)] == [8]
    # The ninth and the tenth row of a hundred. Two rows of their row group are deleted already.
    night = nights(*updated(22, 23))
    assert night.all().files_rewritten == 1
    check(night)
    data, deleted = files_of(night)
    assert not deleted
    assert base not in data


@pytest.mark.slow
def test_a_night_that_touches_too_many_rows_at_once_writes_the_file_again(nights: Callable[..., Runner]) -> None:
    night = nights(*updated(*range(5)))
    assert night.all().files_rewritten == 1
    check(night)
    night = nights(*updated(*range(50, 53)), *((0, None, row_of(-number)) for number in (1, 2)))
    assert night.all().files_rewritten == 1
    check(night)
    assert not files_of(night)[1]


@pytest.mark.slow
def test_a_table_all_of_whose_rows_are_deleted_and_back_again(nights: Callable[..., Runner]) -> None:
    night = nights(*updated(7, 8))
    night.all()
    rest = [row_of(number, "paid" if number in (7, 8) else "new") for number in range(100)]
    night = nights(*((0, row, None) for row in rest))
    night.all()
    check(night)
    assert files_of(night) == ({}, {})
    night = nights(*((0, None, row) for row in ROWS[:30]))
    night.all()
    check(night)
    night = nights(*updated(3))
    assert night.all().files_rewritten == 0
    check(night)


@pytest.mark.slow
def test_equal_rows_of_a_keyless_table_are_deleted_one_by_one(nights: Callable[..., Runner]) -> None:
    for count, rewritten in ((1, 0), (3, 0), (4, 0), (2, 1), (3, 0), (56 - 9, 1)):
        night = nights(*[(KEYLESS, (1, "p"), None)] * count, (KEYLESS, (2, "q"), (2, "q")))
        assert night.all().files_rewritten == rewritten
        check(night)
    assert not files_of(night, NAMES[KEYLESS])[1]


@pytest.mark.slow
def test_files_of_new_versions_are_merged_at_eight(nights: Callable[..., Runner], shares: Any) -> None:
    shares(0.05, 2.0)
    for number in range(9):
        night = nights(*updated(*range(3 * number, 3 * number + 3)))
        night.all()
        check(night)
        data, deleted = files_of(night)
        versions = [uri for uri in data if "part-versions" in uri]
        # The eighth night merges the files of eight nights, the ninth adds one.
        assert (len(versions), len(deleted)) == ({7: 1, 8: 2}.get(number, number + 1), 1)
    # Rows of the merged file are touched again.
    night = nights(*updated(0, before="paid", state="back"))
    night.all()
    check(night)
    assert len(files_of(night)[1]) == 2


@pytest.mark.parametrize(
    ("lost", "touches"),
    [
        ("rewritten", False),
        ("touched again", True),
        pytest.param("touched again", False, marks=pytest.mark.slow),
    ],
)
def test_a_file_that_a_lost_run_replaced_is_put_back_with_its_deletes(
    nights: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, lost: str, touches: bool
) -> None:
    night = nights(*updated(0, 99))
    night.all()
    night = nights(*updated(*(range(10, 30) if lost == "rewritten" else (10,))))

    def end(commit: Callable[[], Any], table: str) -> Any:
        # The table is committed, the cut is not.
        commit()
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, end)
        with pytest.raises(Interrupted):
            night.all()
    before = positions(night)
    assert before == ([] if lost == "rewritten" else [[0, 10, 99]])
    # The next run begins at the copy of the first night. Without another change it finds all changes since.
    night = nights(*(updated(40) if touches and lost != "rewritten" else ()), base=1)
    night.all()
    check(night)


@pytest.mark.slow
def test_a_compaction_that_leaves_the_deletes_of_removed_files_loses_no_row(nights: Callable[..., Runner]) -> None:
    night = nights(*updated(0, 99))
    night.all()
    table, _ = snapshot_of(night, ORDERS)
    compact(table)
    for changes in ((), updated(50)):
        night = nights(*changes)
        night.all()
        check(night)
        assert len(files_of(night)[1]) == 1


@pytest.mark.slow
def test_removed_copies_take_their_delete_files_with_them(nights: Callable[..., Runner]) -> None:
    for number in range(4):
        night = nights(*updated(number))
        night.all()
    sink = open_sink("iceberg", night.target)
    for run in range(4):
        sink.withdraw([(run_id_of(run), TableName.parse(ORDERS))])
        sink.remove(run_id_of(run), TableName.parse(ORDERS), ())
    check(night)
    data, deleted = files_of(night)
    named = {*data, *(entry.data_file.file_path for entry in deleted.values())}
    folder = night.target.folder(ORDERS, "data")
    assert {f"{folder.uri}/{name}" for name in folder.files()} == named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "later", "message"),
    [
        ((0, None, row_of(200)), (0, row_of(200), row_of(200, "paid")), "which has 0 of them"),
        ((0, row_of(5), None), (0, None, row_of(5, "again")), "already has"),
    ],
    ids=["insert", "delete"],
)
def test_a_change_that_the_log_lost_stops_the_run(
    nights: Callable[..., Runner], lost: Change, later: Change, message: str
) -> None:
    night = nights(lost)
    history = night.source.history
    # The server changed the row without a trace in the log.
    history.entries[-1] = Entry("commit")
    night.all()
    history.entries[-1] = Entry("commit", (lost,))
    night = nights(later)
    history.entries[-2] = Entry("commit")
    with pytest.raises(CopyMismatch, match=message):
        night.all()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "altered"])
def test_a_damaged_delete_file_stops_the_run_and_the_next_one_reads_in_full(
    nights: Callable[..., Runner], damage: str
) -> None:
    night = nights(*updated(0, 99))
    night.all()
    (entry,) = files_of(night)[1].values()
    night = nights(*updated(50))
    for step in night.steps()[:2]:
        step()
    path = Path(entry.data_file.file_path.removeprefix("file://"))
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped(path, data.index(b"PAR1") + 8)
    with pytest.raises(FileDamaged, match="deleted rows of a copy" if damage == "altered" else "is gone"):
        night.steps()[2]()
    # The run's error is noted for preflight. Later preflights look for the file, too.
    plans = [TablePlan(table.name, "lock" if table.keyless else "watermark", "") for table in tables()]
    options = StepOptions(chunk_rows=10, refresh="auto")
    found = choose(night.source, open_sink("iceberg", night.target), night.run.parent().uri, plans, options)
    assert [bool(plan.base) for plan in found] == [False, True, True, True]
    assert "damaged" in found[0].reason
    path.write_bytes(data)
    night.all()
    check(night)
