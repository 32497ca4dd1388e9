"""Tasks follow the limits between two chunks, and the driver chooses which of them may read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.effective import READERS, Effective
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime import turn
from airflow_provider_cdc.jobs.runtime.controller import (
    ALIVE_SECONDS,
    IDLE_SECONDS,
    SHARES,
    Governor,
    Measured,
    Readers,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(turn, "READ_SECONDS", 0.0)
    monkeypatch.setattr(turn, "NOTE_SECONDS", 0.0)
    return Storage(tmp_path.as_uri())


def test_a_limit_of_rows_is_kept_on_average(folder: Storage) -> None:
    effective.publish(folder, Effective(limited=True, rows_per_second=1000.0))
    began = time.monotonic()
    task = turn.ReadTurn(folder)
    task.wait()
    for _ in range(3):
        task.began()
        assert task.may_go_on(100, in_transaction=False)
    assert time.monotonic() - began >= 0.3
    # The rest after the last chunk of a task is due before the first chunk of the next one.
    task.began()
    task.ended(200)
    turn.ReadTurn(folder).wait()
    assert time.monotonic() - began >= 0.5


def test_no_session_is_idle_for_as_long_as_a_low_limit_needs(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "_SLEEP_SECONDS", 100.0)
    clock = [1e6]
    released: list[float] = []
    # Only the module has this clock, because other threads of the process may sleep.
    own_time = SimpleNamespace(
        monotonic=lambda: clock[0],
        sleep=lambda seconds: clock.append(clock.pop() + seconds),
        time=time.time,
    )
    monkeypatch.setattr(turn, "time", own_time)
    effective.publish(folder, Effective(limited=True, rows_per_second=10.0))
    task = turn.ReadTurn(folder, lambda: released.append(clock[0]))
    task.wait()
    task.began()
    assert not task.may_go_on(10_000, in_transaction=False)
    assert clock == [1e6], "the session is closed before the rest"
    task.wait()
    assert (released, round(clock[0] - 1e6)) == ([1e6], 1000)
    task.began()
    assert task.may_go_on(10_000, in_transaction=True)
    assert round(clock[0] - 1e6) == 1000 + turn.LONGEST_IDLE
    task.leave()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_the_governor_prolongs_no_transaction(folder: Storage, in_transaction: bool) -> None:
    effective.publish(folder, Effective(share=0.25))
    task = turn.ReadTurn(folder)
    task.began()
    turn._workers[folder.uri].began -= 0.1
    began = time.monotonic()
    assert task.may_go_on(100, in_transaction=in_transaction)
    assert (time.monotonic() - began >= 0.3) is not in_transaction


def test_a_pause_ends_transactions_and_a_hold_does_not(folder: Storage) -> None:
    task = turn.ReadTurn(folder)
    for state in (effective.HOLD, effective.PAUSE, effective.STOP):
        effective.publish(folder, Effective(state))
        assert not task.may_go_on(1, in_transaction=False)
        if state == effective.HOLD:
            assert task.may_go_on(1, in_transaction=True)
            task.check()
            continue
        with pytest.raises(turn.GivenUp):
            task.may_go_on(1, in_transaction=True)
        with pytest.raises(turn.GivenUp):
            task.check()


def test_what_a_task_holds_is_released_once_before_it_waits(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    effective.publish(folder, Effective(effective.PAUSE))
    released: list[int] = []
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            effective.publish(folder, effective.UNLIMITED)

    monkeypatch.setattr(time, "sleep", sleep)
    turn.ReadTurn(folder, lambda: released.append(1)).wait()
    assert (released, len(naps)) == ([1], 3)


def test_readers_that_read_keep_their_turn_and_readers_that_left_give_it_to_those_that_wait(folder: Storage) -> None:
    now = [0.0]

    def note(name: str) -> None:
        # Another time of writing, although the test is faster than the clock of the file system.
        folder.note_json(f"{READERS}/{name}.json", {"at": now[0]})
        path = Path(folder.path(f"{READERS}/{name}.json"))
        os.utime(path, (now[0], now[0]))

    note("gone")
    readers = Readers(folder, lambda: now[0])
    assert readers.chosen(1) == ()
    note("b")
    assert readers.chosen(1) == ("b",)
    note("a")
    assert (readers.chosen(1), readers.active) == (("b",), 1)
    assert (readers.chosen(0), readers.active) == (("b", "a"), 2)
    assert readers.chosen(1) == ("b",)
    folder.delete_file(f"{READERS}/b.json")
    assert readers.chosen(1) == ("a",)
    folder.delete_file(f"{READERS}/a.json")
    now[0] += IDLE_SECONDS
    assert (readers.chosen(1), readers.active) == (("a",), 0)
    now[0] += IDLE_SECONDS + 1
    assert readers.chosen(1) == ()
    note("killed")
    assert readers.chosen(1) == ("killed",)
    now[0] += ALIVE_SECONDS + 1
    note("waiting")
    assert readers.chosen(1) == ("waiting",)


def test_a_reader_keeps_its_turn_while_the_server_returns_nothing(
    folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "NOTE_SECONDS", 0.01)
    effective.publish(folder, Effective(limited=True))
    task = turn.ReadTurn(folder)
    task.wait()
    task.began()
    first = folder.times(READERS)
    noting = turn._workers[folder.uri].noting
    assert noting is not None
    while folder.times(READERS) == first:
        assert noting.is_alive()
    task.leave()
    noting.join()
    assert not folder.files(READERS)


def test_the_governor_slows_step_by_step_and_recovers_more_slowly() -> None:
    governor = Governor()
    over, calm, failed = Measured(excess=("x is 7, above 5",)), Measured(), Measured(failed="the server is away")
    shares = []
    for measured in [over] * 5 + [calm, over] + [calm] * 8:
        governor.observe(measured)
        shares.append(governor.share)
    assert shares[:7] == [*SHARES[1:], 0.0, 0.0, 0.0]
    assert shares[7:] == [0.0, 0.125, 0.125, 0.25, 0.25, 0.5, 0.5, 1.0]
    for _ in range(9):
        governor.observe(failed)
    assert governor.share == SHARES[-2], "a query that has become wrong does not stop the run"
