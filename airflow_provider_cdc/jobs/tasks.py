"""Runs one function over a list of orders, one Spark task each, and brings its errors home as what they are.

Spark reports an exception in a task as a long Java trace, repeats the task whatever the error was, and lets all other
tasks go on. Here a task returns its error as a value instead. An error that no retry can fix stops the job at once;
tasks that failed with another one are run again, in a job of their own. What Spark itself retries is the loss of a
whole process.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError

Order = TypeVar("Order")
Result = TypeVar("Result")

TRIES = 3
PAUSE_SECONDS = 2.0
_POLL_SECONDS = 0.2

_spared_modules = 0
"""How many modules this process had when `_spare_modules` last did something."""


def run_tasks(
    spark: SparkSession,
    title: str,
    orders: Sequence[Order],
    work: Callable[[Order], Result],
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """``work`` of each order, in their order; Spark starts with the first.

    :param title: what Spark's own UI calls the job.
    :param work: runs in an executor; it, the orders and the results are pickled. A Spark task may run twice, even at
        the same time, so whatever it leaves behind must do no harm.
    :param done: is told each result once, in the driver, as soon as it is there. What it raises ends the job.
    :raises TerminalError: the first one that a task raised.
    :raises TransientError: a task failed ``TRIES`` times, or Spark lost its processes.
    """
    results: dict[int, Result] = {}
    for attempt in range(1, TRIES + 1):
        missing = [index for index in range(len(orders)) if index not in results]
        if not missing:
            break
        errors: dict[int, CdcError] = {}
        job = _Job(spark.sparkContext, title, [(index, orders[index]) for index in missing], work)
        for index, outcome in job.outcomes():
            if isinstance(outcome, CdcError):
                errors[index] = outcome
                if isinstance(outcome, TerminalError):
                    job.cancel()
                    raise outcome
            else:
                results[index] = outcome
                try:
                    done(outcome)
                except BaseException:
                    job.cancel()
                    raise
        if errors:
            error = errors[min(errors)]
            if attempt == TRIES:
                raise error
            print(f"{title}: {len(errors)} of {len(missing)} tasks to be repeated: {error}", flush=True)
            time.sleep(PAUSE_SECONDS * attempt * random.uniform(0.5, 1.5))
    return [results[index] for index in range(len(orders))]


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
        self, context: SparkContext, title: str, orders: list[tuple[int, Any]], work: Callable[[Any], Any]
    ) -> None:
        self._context = context
        self._title = title
        self._orders = orders
        self._work = work
        self._group = f"cdc-{uuid.uuid4().hex}"
        self._seen: set[int] = set()
        self._collected: list[tuple[int, Any]] = []
        self._failure: BaseException | None = None

    def outcomes(self) -> Iterator[tuple[int, Any]]:
        """The index and the outcome of each order, once, as they come."""
        early = self._context.accumulator([], _Outcomes())
        thread = InheritableThread(target=partial(self._run, early), daemon=True)
        thread.start()
        taken = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            arrived = early.value
            taken, new = len(arrived), arrived[taken:]
            yield from self._unseen(new)
        if self._failure is not None:
            raise TransientError(
                f"Spark gave the job up: {_reason(self._failure)}",
                where=self._title,
                hint="look at the executors' logs (out of memory? lost?); the next try keeps what is finished",
            ) from self._failure
        yield from self._unseen(self._collected)

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)

    def _run(self, early: Any) -> None:
        try:
            self._context.setJobGroup(self._group, self._title, interruptOnCancel=True)
            orders = self._context.parallelize(self._orders, len(self._orders))
            self._collected = orders.mapPartitions(partial(_work_in_task, self._work, early)).collect()
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
    work: Callable[[Any], Any], early: Any, orders: Iterator[tuple[int, Any]]
) -> Iterator[tuple[int, Any]]:
    _acknowledge()
    for index, order in orders:
        outcome: Any
        try:
            outcome = work(order)
        except CdcError as error:
            outcome = error
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            outcome = TransientError(
                f"{type(error).__name__}: {error}",
                where=f"a Spark task for {order}",
                hint="the whole trace stands in the executor's log",
            )
        early.add([(index, outcome)])
        yield index, outcome
    _spare_modules()
