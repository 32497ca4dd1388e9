"""Runs one function over a list of orders in Spark tasks, and preserves its errors.

Spark reports an exception in a task as a long Java trace, repeats the task whatever the error was, and continues all
other tasks. Here, a task returns its error as a value. A terminal error stops the job at once. Orders that failed with
a transient error, or whose worker was lost, are repeated in a new job until `RetryBudget` ends. An unexpected error is
terminal, because it is a defect of the program.
"""

from __future__ import annotations

import gc
import os
import random
import re
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import AccumulatorParam, Broadcast, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from airflow_provider_cdc.compat import executor_count, is_stopped
from airflow_provider_cdc.core.storage.uri import StorageSettings, current, install
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError
from airflow_provider_cdc.jobs.runtime.controller import check_interrupts
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import BUDGET_SECONDS, RetryBudget, is_transient
from airflow_provider_cdc.jobs.runtime.session import DeferredSession, slots_of

# Watches whether a Spark application has executors, because a job without executors waits without end.
#
# A standalone cluster gives an application no new executors after its master was restarted, because the new master does
# not know the application. The same applies while the master is down. So the step ends with an error some minutes after
# it has lost its last executor. A new application continues the work.


CHECK_SECONDS = 5.0
LOST_SECONDS = BUDGET_SECONDS
"""The time after which an application that has lost all its executors ends."""
TOLD_SECONDS = 60.0
"""How often the lack of executors is reported."""


class ExecutorWatch:
    """Watches the executors of one application.

    :param count: returns the number of executors.
    :param gives_up: whether an application that has lost all executors ends. Otherwise, the lack is only reported,
        because the cluster may still give executors: a queue may be busy.
    """

    def __init__(
        self, count: Callable[[], int], *, gives_up: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._gives_up = gives_up
        self._clock = clock
        self._polled = float("-inf")
        self._had_some = False
        self._since: float | None = None
        self._converted = 0.0

    def poll(self, title: str) -> None:
        """Call this often while a job runs.

        :param title: the name of the job.
        :raises TransientError: the application has lost all executors for too long.
        """
        now = self._clock()
        if now - self._polled < CHECK_SECONDS:
            return
        # Time between two jobs does not count, because an application without work may release its executors.
        jobs_paused = now - self._polled > 4 * CHECK_SECONDS
        self._polled = now
        if self._count():
            self._had_some, self._since = True, None
            return
        if self._since is None or jobs_paused:
            self._since = self._converted = now
            return
        missing = now - self._since
        if self._had_some and self._gives_up and missing >= LOST_SECONDS:
            raise TransientError(
                f"Spark lost all executors {duration(missing)} ago, and the cluster gave no other ones",
                where=title,
                hint="check that the cluster's master and workers are up, and retry the task; finished work is kept",
            )
        if now - self._converted >= TOLD_SECONDS:
            self._converted = now
            how = "has lost all its executors" if self._had_some else "has no executor yet"
            log(f"{title}: the Spark application {how} and waits for the cluster, for {duration(missing)} so far")


_watches: WeakKeyDictionary[Any, ExecutorWatch] = WeakKeyDictionary()


def check_executors(context: Any, title: str) -> None:
    """Check that the application of a ``SparkContext`` has executors; see `ExecutorWatch.look`."""
    if context.master.startswith("local"):
        return
    if context not in _watches:
        properties = context.getConf()
        dynamic = properties.get("spark.dynamicAllocation.enabled", "false") == "true"
        gives_up = context.master.startswith("spark://") and not dynamic
        _watches[context] = ExecutorWatch(lambda: executor_count(context), gives_up=gives_up)
    # If Spark itself has ended, the job reports it.
    with suppress(Py4JError, OSError):
        _watches[context].poll(title)


Order = TypeVar("Order")
Result = TypeVar("Result")
Bundle: TypeAlias = Sequence[tuple[int, Any]]
"""The orders of one Spark task, with their indices."""

SMALL_BYTES = 16 * 2**20
"""The number of bytes that this process reads faster than Spark starts."""
BREATH_SECONDS = 1.0
"""The pause of a worker after an order has failed with a transient error. Without this pause, all orders of a step
would fail before a server is up again."""
_POLL_SECONDS = 0.2
_STREAK = 4
"""If this number of failures per slot occurs without a success in between, the failures count as one failure of all
orders: see the parameter ``brief`` of `run_tasks`."""
_TRACE = "Traceback (most recent call last)"
_MACHINE = ("MemoryError", "Too many open files", "No space left on device")
"""Texts in a trace which show that the machine failed and not the program."""

_broadcasts: WeakKeyDictionary[SparkContext, tuple[StorageSettings, Broadcast[StorageSettings]]] = WeakKeyDictionary()
_spared_modules = 0
"""The number of modules of this process when `_spare_modules` last froze the objects."""


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
    size: int | None = None,
) -> list[Result]:
    """Call ``work`` for each order, and return the results in the order of ``orders``. Spark starts the first order
    first.

    :param title: the name of the job in Spark's UI.
    :param work: runs in an executor. This function, the orders and the results are pickled. A Spark task may run twice,
        even at the same time, so its side effects must be harmless. ``work`` may have a method ``session``, which
        returns a context manager. The value of this context is then called, instead of ``work``, for all orders of one
        Spark task. These orders are done only if the context ends without an error.
    :param done: is called in the driver once for each result, as soon as the result arrives. An exception ends the job.
    :param meanwhile: is called from time to time while the job runs. An exception ends the job.
    :param bundle: returns how many neighbouring orders each Spark task handles; None: one.
    :param brief: stop early. The caller sets this if a failure affects all orders until the caller has resolved the
        cause.
    :param size: the number of bytes that all orders read, if it is known. If Spark has not started yet
        (`DeferredSession`) and the number is below `SMALL_BYTES`, this process does the work.
    :raises TerminalError: a task failed with a TerminalError, or with an unexpected exception.
    :raises TransientError: no order succeeded before `RetryBudget` ended.
    """
    results: dict[int, Result] = {}
    patience = RetryBudget(title, 0.0 if brief else None)
    while missing := [index for index in range(len(orders)) if index not in results]:
        sizes = bundle([orders[index] for index in missing]) if bundle else [1] * len(missing)
        ahead = iter(missing)
        bundles = [[(index, orders[index]) for index in islice(ahead, size)] for size in sizes]
        job = _job(spark, title, bundles, work, size)
        failed: TransientError | None = None
        streak = 0
        try:
            for index, outcome in job.outcomes(meanwhile):
                if isinstance(outcome, TransientError):
                    failed, streak = outcome, streak + 1
                    if brief and streak >= _STREAK * slots_of(spark):
                        raise failed
                elif isinstance(outcome, CdcError):
                    raise outcome
                else:
                    streak = 0
                    results[index] = outcome
                    patience.succeeded()
                    done(outcome)
        except _JobLost as lost:
            # A lost worker loses all orders of its bundle, so run each order in its own task from now on.
            failed, bundle = lost, None
        except BaseException:
            job.cancel()
            raise
        if failed is not None:
            patience.wait(failed)
    return [results[index] for index in range(len(orders))]


def _job(
    spark: SparkSession, title: str, bundles: Sequence[Bundle], work: Callable[[Any], Any], size: int | None
) -> _Job | _JobHere:
    is_small = size is not None and size < SMALL_BYTES
    if is_small and isinstance(spark, DeferredSession) and not spark.is_open:
        return _JobHere(title, bundles, work)
    return _Job(spark.sparkContext, title, bundles, work)


class _JobLost(TransientError):
    """Spark has aborted a job."""


class _JobHere:
    """A job that runs in a thread of this process, without Spark."""

    def __init__(self, title: str, bundles: Sequence[Bundle], work: Callable[[Any], Any]) -> None:
        self._title = title
        # A copy, as an executor gets it: the work and the orders may change while they are used.
        self._bundles, self._work = cloudpickle.loads(cloudpickle.dumps((bundles, work)))
        self._arrived: list[tuple[int, Any]] = []
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()

    def outcomes(self, meanwhile: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        """Yield the index and the outcome of each order once, as soon as the outcome arrives."""
        thread = threading.Thread(target=self._run, name=self._title, daemon=True)
        thread.start()
        taken = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            check_interrupts()
            meanwhile()
            new = self._arrived[taken:]
            taken += len(new)
            yield from new
        yield from self._arrived[taken:]
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        # The order in progress goes on, as a task that an executor does not notice to be cancelled.
        self._cancelled.set()

    def _run(self) -> None:
        try:
            for bundle in self._bundles:
                if self._cancelled.is_set():
                    return
                self._arrived += _outcomes_of(self._title, self._work, bundle)
        except BaseException as failure:
            self._failure = failure


class _Outcomes(AccumulatorParam[list[Any]]):
    """Collects the outcomes of tasks. The driver receives an accumulator at the end of each task, but a result only at
    the end of the job."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        value1.extend(value2)
        return value1


class _Job:
    """A Spark job that runs in its own thread."""

    def __init__(
        self,
        context: SparkContext,
        title: str,
        bundles: Sequence[Bundle],
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
        """Yield the index and the outcome of each order once, as soon as the outcome arrives.

        :raises _JobLost: Spark has aborted the job, and a retry may help.
        """
        early = self._context.accumulator([], _Outcomes())
        thread = InheritableThread(target=partial(self._run, early), daemon=True)
        thread.start()
        outcomes_taken = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            check_interrupts()
            check_executors(self._context, self._title)
            meanwhile()
            arrived = early.value
            outcomes_taken, new = len(arrived), arrived[outcomes_taken:]
            yield from self._unseen(new)
        if self._failure is not None:
            raise self._converted(self._failure) from self._failure
        yield from self._unseen(self._collected)

    def cancel(self) -> None:
        # If Spark itself has ended, ignore the error of the cancellation, because an earlier error is reported.
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(self._group)

    def _converted(self, failure: BaseException) -> BaseException:
        """Convert the error of a failed job to a `CdcError`, if it is an error of Spark."""
        if not isinstance(failure, Py4JError | PySparkException | OSError):
            return failure
        text = str(failure)
        if _TRACE in text and not any(sign in text for sign in _MACHINE):
            # Orders do not raise errors, but return them as values. So this error was raised outside of an order.
            *_, last = re.findall(r"^\w[\w.]*(?:Error|Exception)\b.*", text.partition(_TRACE)[2], re.MULTILINE) or [
                text
            ]
            return TerminalError(
                f"a Python worker failed: {last[:400]}",
                where=self._title,
                hint="install the driver's packages on the executors, in the same versions; see the executors' logs",
            )
        with suppress(Exception):
            if is_stopped(self._context):
                return TransientError(
                    f"Spark was stopped: {_reason(failure)}",
                    where=self._title,
                    hint="check Spark's own log, and retry the task; finished work is kept",
                )
        return _JobLost(
            f"Spark aborted the job: {_reason(failure)}",
            where=self._title,
            hint="check the executors' logs (out of memory? lost?), and retry the task; finished work is kept",
        )

    def _run(self, early: Any) -> None:
        try:
            self._context.setJobGroup(self._group, self._title, interruptOnCancel=True)
            bundles = self._context.parallelize(self._bundles, len(self._bundles))
            access = _broadcast_access(self._context)
            task = partial(_work_in_task, self._title, self._work, early, access)
            self._collected = bundles.mapPartitions(task).collect()
        except BaseException as failure:
            self._failure = failure

    def _unseen(self, outcomes: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        for index, outcome in outcomes:
            if index not in self._seen:
                self._seen.add(index)
                yield index, outcome


def _broadcast_access(context: SparkContext) -> Broadcast[StorageSettings] | None:
    """Return the settings of this process for access to the object store, for the tasks; None: there are none.

    Tasks are pickled without the secrets. A broadcast variable reaches each executor once. Spark writes it to disk, and
    encrypts it there (`jobs.runtime.driver`).
    """
    settings = current()
    if settings is None:
        return None
    known = _broadcasts.get(context)
    if known is None or known[0] != settings:
        known = _broadcasts[context] = settings, context.broadcast(settings)
    return known[1]


def _acknowledge() -> None:
    """Acknowledge at once the data that Spark has sent to this worker so far. This is the task, but not yet its order.

    Spark's JVM sends the task and the order as two small segments. Nagle's algorithm holds back the second segment
    until the first segment is acknowledged, and Linux delays the acknowledgement by 40 ms. This delay is two thirds of
    the time of an empty task. Tasks do not have access to the worker's socket, so the option is set on all sockets of
    the process. The option does not affect other processes.
    """
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if file.is_socket():
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _spare_modules() -> None:
    """Exclude the worker's modules from the garbage collection that Spark does after each task.

    The collection traverses all objects of the process. The libraries of a reader have so many objects that this takes
    longer than the rest of an empty task. Modules are never garbage, so this function does its work only once, and
    again after further imports.
    """
    global _spared_modules
    if len(sys.modules) != _spared_modules:
        # Run the garbage collector first, because garbage that is frozen is never freed.
        gc.collect()
        gc.freeze()
        _spared_modules = len(sys.modules)


def _reason(failure: BaseException) -> str:
    # Of a Java exception, only the first line is useful, without the class names at its beginning.
    text = " ".join(str(failure).split("\n\tat ")[0].split())
    return text.rpartition("SparkException: ")[2][:400]


def _work_in_task(
    title: str,
    work: Callable[[Any], Any],
    early: Any,
    access: Broadcast[StorageSettings] | None,
    bundles: Iterator[Bundle],
) -> Iterator[tuple[int, Any]]:
    _acknowledge()
    # Folders in the work and the orders are opened only after this.
    install(None if access is None else access.value)
    for bundle in bundles:
        outcomes = _outcomes_of(title, work, bundle)
        early.add(outcomes)
        yield from outcomes
    _spare_modules()


def _outcomes_of(title: str, work: Any, bundle: Bundle) -> list[tuple[int, Any]]:
    """Return the outcomes of the orders of one task. If the work has a session, and the session ends with an error,
    this error becomes the outcome of all orders."""
    if not hasattr(work, "session"):
        return [(index, _outcome(title, work, work, order)) for index, order in bundle]
    outcomes: list[tuple[int, Any]] = []

    def all_of_them(first: Any) -> None:
        with work.session() as do:
            outcomes.extend((index, _outcome(title, work, do, order)) for index, order in bundle)

    failed = _outcome(title, work, all_of_them, bundle[0][1])
    return outcomes if failed is None else [(index, failed) for index, _ in bundle]


def _outcome(title: str, work: Any, call: Callable[[Any], Any], order: Any) -> Any:
    """Return the result of ``call`` for an order, or the error that it raised.

    :param call: ``work`` itself, or a part of it.
    """
    try:
        return call(order)
    except TransientError as error:
        outcome: CdcError = error
    except CdcError as error:
        return error
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        if not is_transient(error):
            return TerminalError(
                f"{type(error).__name__}: {error}",
                where=f"{title}: {_described(work, order)}",
                hint="this error was not expected, and a retry does not help: report it with the trace in the "
                "executor's log",
            )
        outcome = TransientError(
            f"{type(error).__name__}: {error}",
            where=f"{title}: {_described(work, order)}",
            hint="retry the task; the complete stack trace is in the executor's log",
        )
    time.sleep(BREATH_SECONDS * random.uniform(0.5, 1.5))
    return outcome


def _described(work: Any, order: Any) -> str:
    """Describe an order in a message. If the order has the index of one of ``work.tables``, add the table's name."""
    tables, index = getattr(work, "tables", ()), getattr(order, "table", None)
    if isinstance(index, int) and index < len(tables):
        # The generated repr of an order may list hundreds of files.
        description = str(order) if "__str__" in vars(type(order)) else type(order).__name__
        return f"{tables[index].table.name}, {description}"
    return str(order)
