"""Runs one function over a list of orders, in Spark tasks, and brings its errors home as what they are.

Spark reports an exception in a task as a long Java trace, repeats the task whatever the error was, and lets all other
tasks go on. Here a task returns its error as a value instead. An error that no retry can fix stops the job at once;
orders that failed with another one, or whose worker was lost, are given out again in a job of their own, for as long as
`Patience` lasts. What nobody foresaw is of the first kind: a mistake in a program does not go away by itself.
"""

from __future__ import annotations

import gc
import os
import random
import re
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import AccumulatorParam, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from airflow_provider_cdc.compat import is_stopped
from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError
from airflow_provider_cdc.jobs.runtime.retry import Patience, may_pass

Order = TypeVar("Order")
Result = TypeVar("Result")

BREATH_SECONDS = 1.0
"""How long a worker rests when an order failed with an error that may pass. Without it, all orders of a step would have
been tried, and would have failed, before a server is up again."""
_POLL_SECONDS = 0.2
_STREAK = 4
"""So many failures in a row for each slot are one and the same: see `run_tasks`, ``brief``."""
_TRACE = "Traceback (most recent call last)"
_MACHINE = ("MemoryError", "Too many open files", "No space left on device")
"""In a trace: the machine failed, and not the program."""

_spared_modules = 0
"""How many modules this process had when `_spare_modules` last did something."""


def run_tasks(
    spark: SparkSession,
    title: str,
    orders: Sequence[Order],
    work: Callable[[Order], Result],
    done: Callable[[Result], None] = lambda result: None,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    bundle: Callable[[Sequence[Order]], Sequence[int]] | None = None,
    brief: bool = False,
) -> list[Result]:
    """``work`` of each order, in their order; Spark starts with the first.

    :param title: what Spark's own UI calls the job.
    :param work: runs in an executor; it, the orders and the results are pickled. A Spark task may run twice, even at
        the same time, so whatever it leaves behind must do no harm. If it has a method ``session``, that gives a
        context whose value is called instead, for all orders of one Spark task; they are done if it ends well.
    :param done: is told each result once, in the driver, as soon as it is there. What it raises ends the job.
    :param meanwhile: is called now and then while the job runs. What it raises ends the job.
    :param bundle: how many orders, neighbours among those it is given, each Spark task is to work on; without it one.
    :param brief: whatever fails the orders fails all of them until the caller puts it right: give up early.
    :raises TerminalError: the first one that a task raised, or what it raised that is none of our errors.
    :raises TransientError: nothing succeeded any more for as long as `Patience` has.
    """
    results: dict[int, Result] = {}
    patience = Patience(title, 0.0 if brief else None)
    while missing := [index for index in range(len(orders)) if index not in results]:
        sizes = bundle([orders[index] for index in missing]) if bundle else [1] * len(missing)
        ahead = iter(missing)
        bundles = [[(index, orders[index]) for index in islice(ahead, size)] for size in sizes]
        job = _Job(spark.sparkContext, title, bundles, work)
        failed: TransientError | None = None
        streak = 0
        try:
            for index, outcome in job.outcomes(meanwhile):
                if isinstance(outcome, TransientError):
                    failed, streak = outcome, streak + 1
                    if brief and streak >= _STREAK * spark.sparkContext.defaultParallelism:
                        raise failed
                elif isinstance(outcome, CdcError):
                    raise outcome
                else:
                    streak = 0
                    results[index] = outcome
                    patience.succeeded()
                    done(outcome)
        except _JobLost as lost:
            # A lost worker may take its neighbours with it.
            failed, bundle = lost, None
        except BaseException:
            job.cancel()
            raise
        if failed is not None:
            patience.wait(failed)
    return [results[index] for index in range(len(orders))]


class _JobLost(TransientError):
    """Spark gave a job up."""


class _Outcomes(AccumulatorParam[list[Any]]):
    """Collects what tasks add. Spark brings an accumulator home as soon as its task ends, a job's result at its end."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        value1.extend(value2)
        return value1


class _Job:
    """One Spark job, run in a thread of its own."""

    def __init__(
        self,
        context: SparkContext,
        title: str,
        bundles: Sequence[Sequence[tuple[int, Any]]],
        work: Callable[[Any], Any],
    ) -> None:
        self._context = context
        self._title = title
        self._bundles = bundles
        self._work = work
        self._group = f"cdc-{uuid.uuid4().hex}"
        self._seen: set[int] = set()
        self._collected: list[tuple[int, Any]] = []
        self._failure: BaseException | None = None

    def outcomes(self, meanwhile: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        """The index and the outcome of each order, once, as they come.

        :raises _JobLost: Spark gave the job up, and may do better next time.
        """
        early = self._context.accumulator([], _Outcomes())
        thread = InheritableThread(target=partial(self._run, early), daemon=True)
        thread.start()
        outcomes_taken = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            meanwhile()
            arrived = early.value
            outcomes_taken, new = len(arrived), arrived[outcomes_taken:]
            yield from self._unseen(new)
        if self._failure is not None:
            raise self._told(self._failure) from self._failure
        yield from self._unseen(self._collected)

    def cancel(self) -> None:
        # If Spark itself is gone, the first error is the one to tell.
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(self._group)

    def _told(self, failure: BaseException) -> BaseException:
        """What Spark says of a job that failed, as our error, if it is one of Spark's."""
        if not isinstance(failure, Py4JError | PySparkException | OSError):
            return failure
        text = str(failure)
        if _TRACE in text and not any(sign in text for sign in _MACHINE):
            # Orders return their errors: this is about what comes before and after them.
            *_, last = re.findall(r"^\w[\w.]*(?:Error|Exception)\b.*", text.partition(_TRACE)[2], re.MULTILINE) or [
                text
            ]
            return TerminalError(
                f"a Python worker cannot do its work: {last[:400]}",
                where=self._title,
                hint="the executors need the packages that the driver has, in the same versions; their logs say more",
            )
        with suppress(Exception):
            if is_stopped(self._context):
                return TransientError(
                    f"Spark was stopped: {_reason(failure)}",
                    where=self._title,
                    hint="look at Spark's own log; the next try keeps what is finished",
                )
        return _JobLost(
            f"Spark gave the job up: {_reason(failure)}",
            where=self._title,
            hint="look at the executors' logs (out of memory? lost?); the next try keeps what is finished",
        )

    def _run(self, early: Any) -> None:
        try:
            self._context.setJobGroup(self._group, self._title, interruptOnCancel=True)
            bundles = self._context.parallelize(self._bundles, len(self._bundles))
            self._collected = bundles.mapPartitions(partial(_work_in_task, self._title, self._work, early)).collect()
        except BaseException as failure:
            self._failure = failure

    def _unseen(self, outcomes: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        for index, outcome in outcomes:
            if index not in self._seen:
                self._seen.add(index)
                yield index, outcome


def _acknowledge() -> None:
    """Have this worker acknowledge at once what Spark has sent it so far: the task, but not yet its order.

    Spark's JVM sends the two as small segments, of which Nagle's algorithm holds the second until the first one is
    acknowledged, and Linux delays that by 40 ms: two thirds of what an empty task takes. The worker's socket is not
    handed to tasks, so all of the process's are asked; for the others nothing changes.
    """
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if file.is_socket():
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _spare_modules() -> None:
    """Keep the worker's modules out of the garbage collection that Spark does after each task.

    It walks all objects of the process, and a reader's libraries have so many that this takes longer than all the rest
    of an empty task. Modules are never garbage: once is enough, and again when more of them were imported.
    """
    global _spared_modules
    if len(sys.modules) != _spared_modules:
        # What is garbage now would otherwise be kept for ever.
        gc.collect()
        gc.freeze()
        _spared_modules = len(sys.modules)


def _reason(failure: BaseException) -> str:
    # Of a Java exception only the first line says anything to a person, and of that what follows the class names.
    text = " ".join(str(failure).split("\n\tat ")[0].split())
    return text.rpartition("SparkException: ")[2][:400]


def _work_in_task(
    title: str, work: Callable[[Any], Any], early: Any, bundles: Iterator[Sequence[tuple[int, Any]]]
) -> Iterator[tuple[int, Any]]:
    _acknowledge()
    for bundle in bundles:
        if hasattr(work, "session"):
            outcomes = _outcomes(title, work, bundle)
        else:
            outcomes = [(index, _outcome(title, work, work, order)) for index, order in bundle]
        early.add(outcomes)
        yield from outcomes
    _spare_modules()


def _outcomes(title: str, work: Any, bundle: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """What becomes of orders in one session: nothing that was done in it counts if it does not end well."""
    outcomes: list[tuple[int, Any]] = []

    def all_of_them(first: Any) -> None:
        with work.session() as do:
            outcomes.extend((index, _outcome(title, work, do, order)) for index, order in bundle)

    failed = _outcome(title, work, all_of_them, bundle[0][1])
    return outcomes if failed is None else [(index, failed) for index, _ in bundle]


def _outcome(title: str, work: Any, call: Callable[[Any], Any], order: Any) -> Any:
    """What ``call``, all of ``work`` or a part of it, makes of an order, or the error that it raised."""
    try:
        return call(order)
    except TransientError as error:
        outcome: CdcError = error
    except CdcError as error:
        return error
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        if not may_pass(error):
            return TerminalError(
                f"{type(error).__name__}: {error}",
                where=f"{title}: {_described(work, order)}",
                hint="this was not foreseen, and no retry helps: report it with the trace, which stands in the "
                "executor's log",
            )
        outcome = TransientError(
            f"{type(error).__name__}: {error}",
            where=f"{title}: {_described(work, order)}",
            hint="the whole trace stands in the executor's log; the task can be retried as it is",
        )
    time.sleep(BREATH_SECONDS * random.uniform(0.5, 1.5))
    return outcome


def _described(work: Any, order: Any) -> str:
    """An order in words: if it knows its table, as the index of one of ``work.tables``, with the table's name."""
    tables, index = getattr(work, "tables", ()), getattr(order, "table", None)
    if isinstance(index, int) and index < len(tables):
        # The text of an order that has a table may list hundreds of files.
        description = str(order) if "__str__" in vars(type(order)) else type(order).__name__
        return f"{tables[index].table.name}, {description}"
    return str(order)
