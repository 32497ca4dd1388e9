"""Decides whether a run that is not published has ended.

A run has ended if Airflow says that its DAG run is over. It has also ended if Airflow does not know the DAG run, and
the run has written nothing for `retention.LIFELESS`. In both cases, a process of the run may have been suspended, and
may resume later. So the clean-up fences a run before it removes the run's files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage, clock_of
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ManifestError

# The names by which Airflow identifies the DAG run of a run. The record is in the run's folder.
#
# The id of a run is a digest of these names. Airflow can be asked for the state of a DAG run only by its names.


FILE = "dag_run.json"


@dataclass(frozen=True)
class DagRunNames:
    """The names of a DAG run.

    :param task_id: the run's task `lock_and_record`; empty: unknown.
    :param map_index: the index of the run in a mapped task group; -1: the group is not mapped.
    """

    dag_id: str
    dag_run_id: str
    task_id: str = ""
    map_index: int = -1

    def __str__(self) -> str:
        return f"{self.dag_run_id} of the DAG {self.dag_id}"


def note_dag_run(folder: Storage, names: DagRunNames) -> None:
    """Record the DAG run of the run in ``folder``."""
    records.write(folder, FILE, names)


def read_dag_run(folder: Storage) -> DagRunNames | None:
    """Return the DAG run of the run in ``folder``; None: an earlier version began the run, or the record is damaged."""
    try:
        return records.read(DagRunNames, folder, FILE) if folder.exists(FILE) else None
    except ManifestError:
        return None


@dataclass(frozen=True)
class DagRunState:
    """What Airflow says of the DAG run of a run.

    :param known: whether Airflow knows the DAG run, as far as it answers.
    :param over: whether no task of the run is executed again by itself.
    :param told: the state in words.
    """

    known: bool
    over: bool = False
    text: str = ""


NOT_KNOWN = DagRunState(False)

StateOf = Callable[[DagRunNames], DagRunState]
"""Asks Airflow for the state of a DAG run."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run has ended, and the proof or the reason for the doubt."""

    ended: bool
    why: str


def no_airflow(names: DagRunNames) -> DagRunState:
    """Return that the state of a DAG run is unknown, because Airflow cannot be asked."""
    return NOT_KNOWN


def judge(names: DagRunNames | None, written: datetime, now: datetime, state_of: StateOf, wait: timedelta) -> Verdict:
    """Return whether a run has ended.

    :param names: the run's DAG run; None: unknown.
    :param written: when the run last wrote something, by the store's clock.
    :param now: the present time, by the store's clock.
    :param wait: how long the files of an ended DAG run stay, because its tasks may still be cleared.
    """
    # This module is slow to import, and Airflow parses DAGs often.
    from airflow_provider_cdc.core.copies.retention import LIFELESS

    state = state_of(names) if names is not None else NOT_KNOWN
    silent, last = now - written, f"{written:%Y-%m-%d %H:%M:%S} UTC"
    told = f"DAG run {names} {state.text}" if state.known else "Airflow does not know its DAG run"
    if state.known and not state.over:
        return Verdict(False, told)
    needed = wait if state.known else max(wait, LIFELESS)
    if silent >= needed:
        return Verdict(True, f"{told}, and nothing was written since {last}")
    if silent < timedelta(0):
        return Verdict(False, f"{told}, but it has written something since the check began")
    return Verdict(False, f"{told}, but the last write was at {last}, less than {_days(needed)} ago")


def _days(time: timedelta) -> str:
    return format_count(time.days, "day") if time.days else f"{time.total_seconds():.0f} s"


# The turns of runs that share tables of a target (option ``concurrent_runs``).
#
# A run takes the next number, by creating the record of this number, which only one run can create. It may go on when
# no run with a smaller number is under way with some of its tables. Every smaller number was taken before, so of two
# runs at least one sees the other, and they never wait for each other. Runs without a turn (``allow``) are found by
# their manifests.
#
# The next run deletes the records of runs that have ended, but never the record of the greatest number. Otherwise, this
# number could be taken again, after a run with a greater number had looked for it.


FOLDER = "_turns"
_READERS = 8


@dataclass(frozen=True)
class TableTurn:
    """The turn of a run.

    :param tables: the names of the copies.
    :param over: whether the run gave up before it began.
    """

    run_id: str
    tables: tuple[str, ...]
    dag_run: DagRunNames
    over: bool = False


@dataclass(frozen=True)
class Other:
    """A run that is under way with some of the same tables."""

    run_id: str
    tables: tuple[str, ...]
    why: str


class Turns:
    """The turns of the runs in ``scratch`` that publish in ``lake`` (a URI)."""

    def __init__(self, scratch: Storage, lake: str, state_of: StateOf) -> None:
        self._scratch = scratch
        self._lake = lake
        self._state_of = state_of
        self._published: set[str] = set()

    def take(self, turn: TableTurn) -> int:
        """Return the number of a run. An earlier try may have taken it."""
        while True:
            taken = self._read()
            own = [number for number, other in taken.items() if other.run_id == turn.run_id and not other.over]
            if own:
                return max(own)
            number = max(taken, default=0) + 1
            if self._scratch.create_json(_name(number), records.encode(turn)):
                return number

    def give_up(self, number: int, turn: TableTurn) -> None:
        """Record that a run gives up before it begins."""
        records.write(self._scratch, _name(number), replace(turn, over=True))

    def waited(self, number: int) -> timedelta:
        """Return how long ago a run took its turn."""
        taken_at = self._scratch.times(FOLDER).get(_name(number))
        # Another deployment of Airflow, which does not know this DAG run, takes it for dead after some days.
        return clock_of(self._scratch) - taken_at if taken_at is not None else timedelta.max

    def before(self, number: int, turn: TableTurn) -> list[Other]:
        """Return the runs that are under way with some of the same tables, and that go first."""
        now, times = clock_of(self._scratch), self._scratch.times(FOLDER)
        taken = self._read()
        others: list[Other] = []
        for other_number, other in sorted(taken.items()):
            if other_number >= number or other.run_id == turn.run_id:
                continue
            verdict = self._verdict(other, times.get(_name(other_number), now), now)
            if other.over or verdict.ended:
                # Another run may delete it at the same time.
                with suppress(FileNotFoundError):
                    self._scratch.delete_file(_name(other_number))
            elif shared := _shared(turn, other.tables):
                others.append(Other(other.run_id, shared, verdict.why))
        known = {other.run_id for other in taken.values()} | {turn.run_id}
        return [*others, *self._without_turn(known, turn, now)]

    def _read(self) -> Mapping[int, TableTurn]:
        turns: dict[int, TableTurn] = {}
        for name in self._scratch.files(FOLDER):
            stem = name.rpartition("/")[2].removesuffix(".json")
            if not stem.isdecimal():
                continue
            try:
                turns[int(stem)] = records.read(TableTurn, self._scratch, name)
            except ManifestError:
                # Another run may have deleted the record of an ended run.
                if self._scratch.exists(name):
                    raise
        return turns

    def _verdict(self, turn: TableTurn, taken_at: datetime, now: datetime) -> Verdict:
        folder = self._scratch.folder(turn.run_id)
        try:
            if not Run.exists(folder):
                return judge(turn.dag_run, taken_at, now, self._state_of, timedelta(0))
            return self._verdict_of_run(Run.load(folder), turn.dag_run, now)
        except (ManifestError, FileNotFoundError):
            return judge(turn.dag_run, taken_at, now, self._state_of, timedelta(0))

    def _verdict_of_run(self, run: Run, names: DagRunNames | None, now: datetime) -> Verdict:
        if is_published(run):
            return Verdict(True, "it is published")
        return judge(names, run.folder.newest_time(), now, self._state_of, timedelta(0))

    def _without_turn(self, known: Collection[str], turn: TableTurn, now: datetime) -> Iterator[Other]:
        names = [name for name in self._scratch.folders() if name not in {FOLDER, *known, *self._published}]
        with ThreadPoolExecutor(_READERS) as readers:
            runs = [run for run in readers.map(self._load, names) if run is not None]
        for run in runs:
            tables = tuple(str(entry.table.copy_name) for entry in run.manifest.tables)
            if is_published(run):
                self._published.add(run.run_id)
            elif run.manifest.lake == self._lake and (shared := _shared(turn, tables)):
                verdict = self._verdict_of_run(run, read_dag_run(run.folder), now)
                if not verdict.ended:
                    yield Other(run.run_id, shared, verdict.why)

    def _load(self, name: str) -> Run | None:
        try:
            return Run.load(self._scratch.folder(name))
        except (ManifestError, FileNotFoundError):
            # The folder is of another version, or is being removed.
            return None


def _shared(turn: TableTurn, tables: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in turn.tables if name in tables)


def _name(number: int) -> str:
    return f"{FOLDER}/{number:08}.json"
