"""Errors of tasks reach the driver with their class, terminal ones at once, and others only after further tries."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import LockNotGranted, SchemaChanged, TerminalError, TransientError
from airflow_provider_cdc.jobs.runtime import retry, session, tasks
from airflow_provider_cdc.jobs.runtime.session import slots_of
from airflow_provider_cdc.jobs.runtime.tasks import SMALL_BYTES, run_tasks
from airflow_provider_cdc.jobs.snapshot.parts import Part


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is given up in any case: a try takes seconds on a busy machine."""
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 3.0)


# The functions that tasks run are made inside the tests: what is local travels to the workers by value.


def test_results_come_in_the_order_of_the_orders_and_each_is_told_once(spark: Any) -> None:
    told: list[int] = []
    assert run_tasks(spark, "square", list(range(7)), lambda number: number * number, told.append) == [
        number * number for number in range(7)
    ]
    assert sorted(told) == [number * number for number in range(7)]


def test_little_work_does_not_start_spark_and_meets_the_same_errors(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_session(name: str) -> Any:
        opened.append(name)
        return spark

    monkeypatch.setattr(session, "open_session", open_session)
    deferred: Any = session.DeferredSession("night", 2)
    tries: list[int] = []

    def work(number: int) -> int:
        if number == 3:
            raise SchemaChanged("altered", where="shop.orders")
        return number * number

    def fails_once(number: int) -> int:
        if not mark.exists():
            mark.touch()
            raise TransientError("down", where="here")
        return number

    mark = tmp_path / "tried"
    assert run_tasks(deferred, "square", [2, 1], work, tries.append, size=10) == [4, 1]
    assert tries == [4, 1]
    with pytest.raises(SchemaChanged, match="altered"):
        run_tasks(deferred, "square", [1, 2, 3], work, size=10)
    monkeypatch.setattr(tasks, "BREATH_SECONDS", 0.0)
    assert run_tasks(deferred, "retry", [7], fails_once, size=10) == [7]
    assert slots_of(deferred) == 2
    assert not opened
    # Work of an unknown size, and much work, may take a whole cluster.
    for size in (None, SMALL_BYTES):
        fresh: Any = session.DeferredSession("night", 2)
        assert run_tasks(fresh, "pid", [1], lambda _: os.getpid(), size=size) != [os.getpid()]
        # Spark is faster once it has started.
        assert run_tasks(fresh, "pid", [1], lambda _: os.getpid(), size=1) != [os.getpid()]
    assert opened == ["night", "night"]


def test_nothing_to_do_is_done(spark: Any) -> None:
    assert run_tasks(spark, "nothing", [], lambda number: number) == []


def test_a_terminal_error_stops_the_job_and_keeps_its_words(spark: Any, tmp_path: Path) -> None:
    stopped, begun = tmp_path / "stopped", tmp_path / "begun"
    begun.mkdir()

    def work(number: int) -> int:
        if number == 1:
            raise SchemaChanged("a column was added", where="s.t at log:4", hint="run again")
        (begun / str(number)).touch()
        deadline = time.monotonic() + 60
        while not stopped.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return number

    orders = [0, 1, *range(2, 60)]
    with pytest.raises(SchemaChanged) as caught:
        run_tasks(spark, "stop", orders, work)
    assert str(caught.value) == "[CDC-1101] s.t at log:4: a column was added\n  Hint: run again"
    stopped.touch()
    # The next job starts after the rest of this one.
    assert run_tasks(spark, "next", [1], lambda number: number) == [1]
    assert len(list(begun.iterdir())) < 30


NO_FILES = OSError(24, "Too many open files")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (LockNotGranted("busy"), None),
        (OSError("storage"), None),
        (MemoryError(), None),
        (ImportError("source not available through get_data()"), NO_FILES),
    ],
)
def test_what_may_pass_is_tried_again_and_only_that(
    spark: Any, tmp_path: Path, error: Exception, cause: Exception | None
) -> None:
    def work(number: int) -> int:
        with (tmp_path / str(number)).open("a") as file:
            file.write("x")
        if number == 2 and (tmp_path / "2").stat().st_size < 3:
            raise error from cause
        return number

    assert run_tasks(spark, "again", list(range(4)), work) == [0, 1, 2, 3]
    assert [(tmp_path / str(number)).stat().st_size for number in range(4)] == [1, 1, 3, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("_short_patience")
def test_what_does_not_pass_is_given_up(spark: Any) -> None:
    def work(number: int) -> int:
        raise LockNotGranted("busy", where="s.t")

    with pytest.raises(LockNotGranted, match=r"s\.t: busy"):
        run_tasks(spark, "given up", [1, 2], work)


def test_an_error_that_nobody_foresaw_stops_the_job_and_is_named_with_its_table(spark: Any, tmp_path: Path) -> None:
    class Work:
        tables: ClassVar[list[Any]] = [
            RunTable(Table(TableName("shop", name), ()), "watermark", "") for name in ("orders", "lines")
        ]

        def __call__(self, part: Any) -> float:
            with (tmp_path / "tries").open("a") as file:
                file.write("x")
            return 1 / 0

    part = Part(7, 1, (Chunk(3), Chunk(4)), 1)
    with pytest.raises(TerminalError) as caught:
        run_tasks(spark, "read chunks", [part], Work())
    assert str(caught.value).startswith(
        "[CDC-1001] read chunks: shop.lines, part 7 (chunk 3 [-∞ … ∞) to 4): ZeroDivisionError: division by zero"
    )
    assert (tmp_path / "tries").read_text() == "x"


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_orders_another_try_and_no_more(spark: Any, tmp_path: Path) -> None:
    def work(number: int) -> int:
        with (tmp_path / str(number)).open("a") as file:
            file.write("x")
        if number == 5 and (tmp_path / "5").stat().st_size < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    told: list[int] = []
    found = run_tasks(spark, "one death", list(range(8)), work, told.append, bundle=lambda orders: [4, 4])
    assert found == list(range(8))
    assert sorted(told) == list(range(8))
    assert (tmp_path / "5").stat().st_size == 3


@pytest.mark.slow
@pytest.mark.usefixtures("_short_patience")
def test_a_worker_that_dies_every_time_is_reported_in_few_words(spark: Any) -> None:
    with pytest.raises(TransientError, match="Spark aborted the job") as caught:
        run_tasks(spark, "death", [1], lambda number: os._exit(9))
    assert len(str(caught.value)) < 800
    assert "\tat " not in str(caught.value)
    assert run_tasks(spark, "life", [1], lambda number: number) == [1]


def test_what_a_worker_cannot_unpack_is_no_matter_of_time(spark: Any) -> None:
    class Missing:
        def __reduce__(self) -> Any:
            return import_module, ("nowhere_to_be_found",)

    with pytest.raises(TerminalError, match="ModuleNotFoundError: No module named 'nowhere_to_be_found'"):
        run_tasks(spark, "unpack", [Missing()], lambda order: order)


@pytest.mark.slow
def test_what_a_worker_cannot_unpack_for_want_of_a_file_is_tried_again(spark: Any, tmp_path: Path) -> None:
    class Late:
        def __reduce__(self) -> Any:
            return _unpack, (str(tmp_path / "tried"),)

    orders: list[Any] = [Late()]
    assert run_tasks(spark, "unpack later", orders, lambda order: order) == [1]


def _unpack(path: str) -> int:
    if Path(path).exists():
        return 1
    Path(path).touch()
    raise NO_FILES


@pytest.mark.slow
def test_the_budget_is_time_without_any_success(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last order is refused for longer than the budget, but never are all of them."""
    # A clock on which each reading takes a second. It is read after each job and at each success.
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)), sleep=time.sleep)
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 7.0)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_SECONDS", 0.1)

    def work(number: int) -> int:
        with (tmp_path / str(number)).open("a") as file:
            file.write("x")
        if (tmp_path / str(number)).stat().st_size < (1, 5, 10)[number]:
            raise LockNotGranted("busy")
        return number

    assert run_tasks(spark, "budget", [0, 1, 2], work) == [0, 1, 2]
    assert next(seconds) > 7


@pytest.mark.slow
def test_what_fails_all_orders_at_once_is_given_up_early_if_the_caller_knows_what_to_do(
    spark: Any, tmp_path: Path
) -> None:
    def work(number: int) -> int:
        (tmp_path / str(number)).touch()
        raise LockNotGranted("the view is gone")

    with pytest.raises(LockNotGranted):
        run_tasks(spark, "brief", list(range(100)), work, brief=True)
    assert len(list(tmp_path.iterdir())) < 30


@pytest.mark.slow
def test_modules_are_kept_out_of_the_garbage_collection_after_each_task_and_garbage_is_not(spark: Any) -> None:
    def work(number: int) -> tuple[int, list[int]]:
        class Ring:
            pass

        # A later task in the same worker sees what became of the garbage of earlier ones.
        rings = vars(gc).setdefault("rings", [])
        alive = [at for at, reference in enumerate(rings) if reference() is not None]
        ring = Ring()
        ring.itself = ring  # type: ignore[attr-defined]
        rings.append(weakref.ref(ring))
        return gc.get_freeze_count(), alive

    run_tasks(spark, "the first tasks of all workers", list(range(8)), work)
    # Spark may begin a worker at any time: each has had its first task at last.
    for _ in range(50):
        found = run_tasks(spark, "later tasks", list(range(8)), work)
        assert not any(alive for _, alive in found)
        if min(frozen for frozen, _ in found) > 10_000:
            return
    pytest.fail("some worker has not frozen its modules")


def test_what_was_done_in_a_session_counts_only_if_it_ends_well(spark: Any, tmp_path: Path) -> None:
    class Work:
        @contextmanager
        def session(self) -> Iterator[Any]:
            failed = tmp_path / "failed"
            before = failed.exists()
            yield lambda number: number * 2 if before else 0
            if not before:
                failed.touch()
                raise TransientError("the disk took nothing")

    told: list[int] = []
    assert run_tasks(spark, "settle", [1, 2, 3], Work(), told.append, bundle=lambda orders: [len(orders)]) == [2, 4, 6]  # type: ignore[arg-type]
    assert told == [2, 4, 6]
