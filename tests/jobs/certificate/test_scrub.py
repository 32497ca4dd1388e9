"""Files that a copy takes over are read again, each within a number of days, and damage is healed by a full read."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.digest.totals import CheckedFile
from airflow_provider_cdc.core.options.run import ScrubOptions, StepOptions
from airflow_provider_cdc.core.parquet import writer
from airflow_provider_cdc.core.parquet.writer import StagedFile
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.jobs.begin.base_selection import choose
from airflow_provider_cdc.jobs.certificate import scrub
from airflow_provider_cdc.jobs.roll_forward.plan import BaseFile
from airflow_provider_cdc.sinks.registry import open_sink
from tests.jobs.certificate.test_certificate import certificate
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, Entry, History, tables
from tests.jobs.roll_forward.test_roll_forward import ROWS, Rolling, flipped, inserted

WEEK = timedelta(days=7)


@pytest.fixture
def in_days(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the time of the check: a number of days from now."""

    def set_days(days: float) -> None:
        monkeypatch.setattr(scrub, "now_utc", lambda: datetime.now(UTC) + timedelta(days=days))

    return set_days


def run_id_of(number: int) -> str:
    return f"202601{number + 1:02}T000000Z-00000000"


class Nights:
    """Nights of one lake. In each night, one row is added at the end of the orders."""

    def __init__(self, make: MakeRunner, **options: Any) -> None:
        self.make = make
        self.options = options
        self.source = Rolling(History([inserted(*ROWS)]), 1)
        self.source.end = 1
        self.number = 0
        self.last = make(self.source, 1, run_id=run_id_of(0))
        self.last.all()

    def next(self) -> Runner:
        self.number += 1
        row = (100 + self.number, "new", "")
        self.source.history.entries.append(Entry("commit", ((0, None, row),)))
        self.source.end = len(self.source.history.entries)
        bases = dict.fromkeys(NAMES, run_id_of(self.number - 1))
        night = self.make(self.source, self.source.end, run_id=run_id_of(self.number), bases=bases, **self.options)
        self.last = night
        return night

    def rot(self) -> Path:
        """Damage a file of the orders that the next night would take over, without changing its size."""
        folder = self.last.target.folder(NAMES[0], f"snapshot={run_id_of(self.number)}")
        path = Path(folder.path(folder.files()[0]))
        flipped(path, 8)
        return path


@pytest.fixture
def nights(here: MakeRunner) -> Any:
    return lambda **options: Nights(here, **options)


def test_a_file_that_rots_is_found_within_a_week_and_healed_by_a_full_read(nights: Any, in_days: Any) -> None:
    lake = nights()
    path = lake.rot()
    in_days(0)
    # Nothing is due yet: without the check, the file would be carried on forever.
    night = lake.next()
    night.all()
    assert certificate(night, NAMES[0]).scrubbed == 0
    in_days(7.5)
    night = lake.next()
    with pytest.raises(FileDamaged, match="its checksum is") as damage:
        night.all()
    assert path.name in damage.value.where
    assert night.target.read_json(f"{NAMES[0]}/_latest.json")["run_id"] == run_id_of(1)
    plans = [TablePlan(table.name, "lock" if table.keyless else "watermark", "") for table in tables()]
    options = StepOptions(chunk_rows=10, refresh="auto")
    found = choose(lake.source, open_sink("parquet", night.target), night.run.parent().uri, plans, options)
    assert [plan.base for plan in found] == ["", *[run_id_of(1)] * 3]
    assert "its checksum is" in found[0].reason


def test_other_tables_are_published_where_tables_may_be_left_out(nights: Any, in_days: Any) -> None:
    lake = nights(on_table_error="skip")
    lake.rot()
    in_days(7.5)
    night = lake.next()
    found = night.all()
    assert [*found.skipped] == [NAMES[0]]
    assert "its checksum is" in found.skipped[NAMES[0]]
    assert set(found.published) == {*NAMES[1:]}


def test_without_the_check_rot_is_carried_on(nights: Any, in_days: Any) -> None:
    lake = nights(scrub=ScrubOptions(scrub_days=0))
    lake.rot()
    in_days(99)
    night = lake.next()
    night.all()
    assert certificate(night, NAMES[0]).scrubbed == 0


def test_the_certificate_says_when_a_file_was_last_whole(nights: Any, in_days: Any) -> None:
    lake = nights()
    in_days(7.5)
    night = lake.next()
    night.all()
    found = certificate(night, NAMES[0])
    assert found.scrubbed > 1
    assert found.scrubbed_bytes > 0
    checked = {file.name: datetime.fromisoformat(file.whole_at) for file in found.files if file.kept}
    assert checked
    assert min(checked.values()) > datetime.now(UTC) + timedelta(days=7)
    # The next night does not check these files again, and knows when they were checked.
    in_days(8)
    night = lake.next()
    night.all()
    found = certificate(night, NAMES[0])
    assert {file.name: datetime.fromisoformat(file.whole_at) for file in found.files if file.name in checked} == checked


def test_files_without_digests_get_them(here: MakeRunner, in_days: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions wrote no digests. Once the files of a copy have been checked, its digest is known."""
    with monkeypatch.context() as patch:
        close = writer._OpenFile.close
        patch.setattr(writer._OpenFile, "close", lambda self: replace(close(self), digest="", keys=()))
        lake = Nights(here)
    night = lake.next()
    night.all()
    found = certificate(night, NAMES[0])
    assert found.digest == ""
    assert found.derivation is not None
    assert "earlier version" in found.derivation.impossible
    in_days(8)
    night = lake.next()
    night.all()
    assert certificate(night, NAMES[0]).digest
    night = lake.next()
    night.all()
    found = certificate(night, NAMES[0])
    assert found.derivation is not None
    assert not found.derivation.impossible


@pytest.mark.parametrize("hours", [1, 24, 100])
def test_each_file_is_checked_once_in_the_days_and_evenly(hours: int) -> None:
    """Also where all files were written in one night, and at any frequency of runs."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    files = [StagedFile(f"part-{number:06}-x-0.parquet", 1, 1, "") for number in range(700)]
    seen = {file.name: CheckedFile(began.isoformat()) for file in files}
    checks: Counter[str] = Counter()
    most = 0
    for run in range(1, 4 * 7 * 24 // hours + 1):
        now = began + timedelta(hours=hours * run)
        due = [file for file in files if scrub.due_at(file, seen[file.name], 7) <= now]
        most = max(most, len(due))
        for file in due:
            assert now - datetime.fromisoformat(seen[file.name].at) <= WEEK + timedelta(hours=hours)
            seen[file.name] = CheckedFile(now.isoformat(), checked=True)
        checks.update(file.name for file in due)
    assert {*checks} == {file.name for file in files}
    assert max(checks.values()) <= 5
    assert most <= 1.5 * 700 * min(1, hours / (7 * 24)) + 20


def test_a_run_reads_no_more_than_its_bytes_and_begins_with_what_is_due_longest() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    due = [(at + timedelta(hours=9 - age), BaseFile(0, StagedFile(f"{age}", 1, 2**30, ""))) for age in range(9)]
    assert [one.file.name for one in scrub._within(due, 2.5)] == ["8", "7", "6"]
    assert len(scrub._within(due, 0)) == 9


def test_nights_that_begin_a_little_earlier_or_later_do_not_gather_the_checks() -> None:
    chance, began, nights = random.Random(1), datetime(2026, 1, 1, tzinfo=UTC), 200
    files = [StagedFile(f"part-{number:06}-x-0.parquet", 1, 1, "") for number in range(700)]
    seen = {file.name: CheckedFile(began.isoformat()) for file in files}
    counts = []
    for night in range(nights):
        now = began + timedelta(days=night, seconds=chance.uniform(-60, 60))
        due = [file for file in files if scrub.due_at(file, seen[file.name], 7) <= now]
        seen |= {file.name: CheckedFile(now.isoformat(timespec="seconds"), checked=True) for file in due}
        counts.append(len(due))
    assert max(counts[1:]) <= 200
    assert sum(counts) <= 700 * nights / 5.25
