"""The driver's side of control. A thread reads the acts of operators every few seconds, measures the source for the
governor, and writes what the tasks may do (`core.control.effective`). The step's own thread asks here whether it must
pause or stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from airflow_provider_cdc.core.control import acts as events
from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.acts import LIMIT, Act, Acts, Wanted, stopped, wanted
from airflow_provider_cdc.core.control.effective import READERS, Effective
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import CdcError, LoginRefused
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.sources.api.source import Source

# The governor: measures the source, and decides how much of the time a run may read.


SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)
"""The part of the time in which a task may read, by level. The last level pauses the run."""
ANSWER_SECONDS = 10.0
"""The time after which a server that has not answered counts as one that cannot be measured."""
CALM = 2
"""The number of measurements without an excess after which the level decreases by one."""


@dataclass(frozen=True)
class Measured:
    """A measurement. ``excess`` has the signals above their thresholds, in words. ``failed`` says why nothing could be
    measured. ``is_last`` is true if the login was refused, because more wrong logins could lock the account."""

    excess: tuple[str, ...] = ()
    failed: str = ""
    is_last: bool = False


def measure(source: Source, thresholds: Mapping[str, float]) -> Measured:
    """Measure the signals of the thresholds. An error is a result, because an overloaded server may not answer."""
    try:
        numbers = source.load(list(thresholds))
        return Measured(
            tuple(
                f"{signal} is {numbers[signal]:,g}, above {threshold:,g}"
                for signal, threshold in thresholds.items()
                if numbers[signal] > threshold
            )
        )
    except Exception as error:
        failed = getattr(error, "message", f"{type(error).__name__}: {error}")
        return Measured(failed=failed, is_last=isinstance(error, LoginRefused))


class Meter:
    """Measures in another thread, so that a server that does not answer delays neither a pause nor a stop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asking: threading.Thread | None = None
        self._asked = 0.0
        self._found: Measured | None = None
        self._ended = False

    def measured(self, thresholds: Mapping[str, float]) -> Measured | None:
        """Return the result of the last measurement, and begin the next one. Return None if the last one is not done
        yet. Each result is returned once."""
        if self._asking is not None and self._asking.is_alive():
            if time.monotonic() - self._asked < ANSWER_SECONDS:
                return None
            self._asked = time.monotonic()
            return Measured(failed=f"the server has not answered for {ANSWER_SECONDS:.0f} s")
        found, self._found, self._asked = self._found, None, time.monotonic()
        self._ended = self._ended or (found is not None and found.is_last)
        if self._ended:
            return found
        self._asking = threading.Thread(target=self._ask, args=(thresholds,), name="meter", daemon=True)
        self._asking.start()
        return found

    def _ask(self, thresholds: Mapping[str, float]) -> None:
        self._found = measure(self._source, thresholds)


class Governor:
    """The level of the run, which follows the measurements: each excess increases it by one, and `CALM` measurements
    without an excess decrease it by one.

    If nothing can be measured, the run becomes slower, but is not paused: a query that has become wrong must not stop
    the run forever.
    """

    def __init__(self, shares: Sequence[float] = SHARES) -> None:
        self._shares = shares
        self._calm = 0
        self.level = 0

    @property
    def share(self) -> float:
        return self._shares[self.level]

    def observe(self, measured: Measured) -> None:
        last = len(self._shares) - 1
        if measured.excess:
            self.level, self._calm = min(self.level + 1, last), 0
        elif measured.failed:
            self.level, self._calm = min(self.level + 1, max(self.level, last - 1)), 0
        else:
            self._calm += 1
            if self._calm >= CALM:
                self.level, self._calm = max(self.level - 1, 0), 0

    def reset(self) -> None:
        self.level = self._calm = 0


# Describes what a paused run still holds on its source, and what that costs.


def held(source: Source, run: Run) -> str:
    """Return, in words, what the run holds on the server while it is paused. It holds no lock, no transaction and no
    exported snapshot."""
    manifest = run.manifest
    size = ""
    with suppress(CdcError, OSError):
        if (backlog := source.backlog(manifest.initial, manifest.identity)) is not None:
            size = f"{backlog / 2**20:,.1f} MiB"
    if slot := manifest.identity.slot:
        cost = f"{size} of log until now, and " if size else "log, and "
        return (
            f"The run holds no lock, transaction or snapshot. On the server, its replication slot {slot} keeps {cost}"
            "dead rows of the system catalogs; both grow until the run ends"
        )
    log = f" ({size} until now)" if size else ""
    return (
        "The run holds nothing on the server. It still needs the log since its initial position"
        f"{log}: resume it before the server removes this log"
    )


# The readers of a step, if a limit applies to them. A reader is a Python worker of Spark. Workers note in small files
# that they read or want to read; the driver chooses who may.


ALIVE_SECONDS = 20.0
"""A reader that has not renewed its note for this number of seconds is no longer there."""
IDLE_SECONDS = 10.0
"""A reader between two Spark tasks keeps its turn for this number of seconds, unless another reader waits for it."""


class Readers:
    """Chooses the readers that may read."""

    def __init__(self, folder: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._seen: dict[str, tuple[datetime, float]] = {}
        self._left: dict[str, float] = {}
        self._chosen: tuple[str, ...] = ()
        self._begun = False
        self.active = 0
        """The number of chosen readers that read."""

    def forget(self) -> None:
        """Forget all readers. Those that are still there note again that they want to read."""
        self._begun = False

    def chosen(self, most: int) -> tuple[str, ...]:
        """Return the names of the readers that may read now.

        A reader that was chosen stays chosen as long as it is alive, so that it finishes its part.

        :param most: the maximum number of readers; 0: all.
        :raises CdcError, OSError: the store failed.
        """
        now = self._clock()
        if not self._begun:
            # Readers of an earlier try are gone, or read for nothing.
            self._folder.delete_folder(READERS)
            self._seen, self._left, self._chosen, self._begun = {}, {}, (), True
        present = self._folder.times(READERS)
        # Compare the time of a note only with its earlier time, because the store has another clock.
        for name, written in present.items():
            if name not in self._seen or self._seen[name][0] != written:
                self._seen[name] = written, now
        for name in self._seen.keys() - present.keys():
            del self._seen[name]
            self._left[name] = now
        alive = {name for name, (_, since) in self._seen.items() if now - since <= ALIVE_SECONDS}
        idle = {name for name, since in self._left.items() if now - since <= IDLE_SECONDS} - alive
        reading = [name for name in self._chosen if name in alive]
        reading += sorted(alive - set(reading))
        self.active = min(len(reading), most or len(reading))
        reading += [name for name in self._chosen if name in idle]
        self._chosen = tuple(reading[: most or None])
        return tuple(name.rpartition("/")[2].removesuffix(".json") for name in self._chosen)


POLL_SECONDS = 2.0
REPEATED_SECONDS = 60.0
"""The time after which a paused step says again that it is paused, and what it holds."""
CHECKED_SECONDS = 10.0
"""How often the driver checks what the tasks may do. A try that was presumed dead may have overwritten it and ended."""
_TICK_SECONDS = 0.5
_END_SECONDS = 5.0

_current: ContextVar[Controller | None] = ContextVar("controller", default=None)


class RunPaused(Exception):
    """The run was paused in a block of `giving_up_when_paused`."""


@contextmanager
def controlled(step: str, run: Run, source: Source, token: str) -> Iterator[None]:
    """Control a step in this block. The block begins when the run is not paused.

    :raises RunStopped: an operator stopped the run.
    """
    controller = Controller(step, run, source, token)
    mark = _current.set(controller)
    controller.start()
    try:
        controller.wait_while_paused()
        yield
        controller.poll()
    finally:
        controller.end()
        _current.reset(mark)


def check_interrupts() -> None:
    """Raise an error if the step of this thread must not go on. Call this often; it never waits.

    :raises RunStopped: an operator stopped the run.
    :raises RunPaused: the run is paused, and the block gives up when it is paused.
    """
    if (controller := _current.get()) is not None:
        controller.poll()


def wait_while_paused() -> None:
    """Wait while the run is paused.

    :raises RunStopped: an operator stopped the run.
    """
    if (controller := _current.get()) is not None:
        controller.wait_while_paused()


def paused_seconds() -> float:
    """Return for how long the step of this thread has been paused by operators so far."""
    controller = _current.get()
    return 0.0 if controller is None else controller.paused_seconds


@contextmanager
def giving_up_when_paused(gives_up: bool = True) -> Iterator[None]:
    """Let `check_interrupts` raise `RunPaused` in this block, because the block holds something on the source that a
    paused run must not hold."""
    controller = _current.get()
    if controller is None or not gives_up:
        yield
        return
    controller.gives_up = True
    try:
        yield
    finally:
        controller.gives_up = False


class Controller:
    """Controls one try of a step; see the module."""

    def __init__(self, step: str, run: Run, source: Source, token: str) -> None:
        self.gives_up = False
        self._step = step
        self._run = run
        self._source = source
        self._token = token
        self._acts = Acts(run.folder)
        self._logged_acts = -1
        self._wanted = Wanted(*_initial(run))
        self._governor = Governor()
        self._measured = Measured()
        self._meter = Meter(source)
        self._readers = Readers(run.folder)
        self._published: Effective | None = None
        self._checked = float("-inf")
        self._log = events.ControlLog()
        self._unwritten = False
        self._trouble = ""
        self._polled = self._repeated = time.monotonic()
        self._too_late = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="control", daemon=True)

    def start(self) -> None:
        """Poll once, and then every few seconds in another thread."""
        self._poll_safely()
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(_END_SECONDS)
        self._write_log()

    @property
    def paused_seconds(self) -> float:
        return self._log.paused_seconds

    def poll(self) -> None:
        state = self._wanted
        if state.stop is not None and not self._too_late:
            self._stop(state.stop)
        if self.gives_up and state.pause is not None:
            raise RunPaused

    def wait_while_paused(self) -> None:
        self.poll()
        while self._wanted.pause is not None:
            self._ending.wait(_TICK_SECONDS)
            self.poll()

    def _stop(self, act: Act) -> None:
        """Make sure that nothing of the run is ever published, and raise an error. If the run has its commit, it is too
        late: the run ends as usual."""
        run = self._run
        state = run.end(f"stopped by {act}")
        if state.ended is None and state.commit is None:
            # It has begun anew, or was removed.
            raise RunRestarted
        if state.ended is None:
            self._too_late = True
            self._note("not stopped", f"{act}; the run had made its commit before, so it publishes its copies")
            return
        self._note("stopped", str(act))
        raise stopped(run.folder, act)

    def _work(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            self._poll_safely()

    def _poll_safely(self) -> None:
        try:
            self._poll()
            self._trouble = ""
        except Exception as error:
            # The step goes on as before. If the store is down, the step itself fails. No error ends the thread, because
            # a paused run without it could neither be resumed nor stopped.
            if (trouble := f"{type(error).__name__}: {error}") != self._trouble:
                self._trouble = trouble
                log(f"{self._step}: could not follow the control records, and will try again: {trouble}")

    def _poll(self) -> None:
        acts = self._acts.read()
        before, now = self._wanted, wanted(self._run.manifest.options.limits, acts, self._run.digests)
        seconds, self._polled = time.monotonic() - self._polled, time.monotonic()
        self._add(seconds if before.pause is not None else 0.0, seconds if self._governor.level else 0.0)
        # Only acts that arrive during this step change its limits. Earlier acts are in the log of an earlier step.
        for act in acts[self._logged_acts :] if self._logged_acts >= 0 else ():
            if act.verb == LIMIT:
                self._note("limits changed", f"{act.limits}, by {act}")
        self._logged_acts = len(acts)
        self._wanted = now
        if now.pause is not None or now.stop is not None:
            # Publish it first, because a server that does not answer may delay what follows.
            self._publish(self._effective(now))
        self._log_pause(before.pause, now.pause)
        if now.thresholds and now.pause is None and now.stop is None:
            self._govern(now)
        elif not now.thresholds:
            self._governor.reset()
        self._publish(self._effective(now))
        if self._unwritten:
            self._write_log()

    def _log_pause(self, before: Act | None, now: Act | None) -> None:
        if now is not None and now != before:
            self._note("paused", f"{now}. {held(self._source, self._run)}")
            self._repeated = time.monotonic()
        elif now is not None and time.monotonic() - self._repeated >= REPEATED_SECONDS:
            self._repeated = time.monotonic()
            # Write the log, so that the folder of a run that is paused for long does not look lifeless.
            self._unwritten = True
            log(
                f"{self._step}: paused for {duration(self._log.paused_seconds)}, by {now}. "
                f"{held(self._source, self._run)}"
            )
        elif now is None and before is not None and self._wanted.stop is None:
            # A read that was given up may have ended its worker.
            self._readers.forget()
            self._note("resumed", f"after {duration(self._log.paused_seconds)}")

    def _govern(self, now: Wanted) -> None:
        level, measured = self._governor.level, self._meter.measured(now.thresholds)
        if measured is None:
            return
        self._governor.observe(measured)
        if measured.failed and measured.failed != self._measured.failed:
            log(f"{self._step}: the governor could not measure the source: {measured.failed}")
        self._measured = measured
        share = self._governor.share
        if self._governor.level > level:
            why = "; ".join(measured.excess) or f"could not measure the source: {measured.failed}"
            self._note(f"slowed to {share:.0%}" if share else "held by the governor", why)
        elif self._governor.level < level:
            self._note(f"back to {share:.0%}", "all watched numbers are within their thresholds")

    def _effective(self, now: Wanted) -> Effective:
        if now.stop is not None and not self._too_late:
            return Effective(effective.STOP)
        if now.pause is not None:
            return Effective(effective.PAUSE)
        share = self._governor.share
        if not now.max_reads and not now.max_rows_per_second:
            return Effective(effective.GO if share else effective.HOLD, share)
        readers = self._readers.chosen(now.max_reads)
        rate = now.max_rows_per_second / max(1, self._readers.active)
        state = effective.GO if share else effective.HOLD
        return Effective(state, share, True, now.max_reads > 0, rate, readers)

    def _publish(self, new: Effective) -> None:
        if self._published is None and new == effective.UNLIMITED and not self._run.folder.exists(effective.FILE):
            self._published = new
        if new != self._published or self._is_overwritten():
            effective.publish(self._run.folder, new)
            self._published = new

    def _is_overwritten(self) -> bool:
        if time.monotonic() - self._checked < CHECKED_SECONDS:
            return False
        self._checked = time.monotonic()
        return effective.read(self._run.folder) != self._published

    def _note(self, what: str, why: str) -> None:
        log(f"{self._step}: {what}: {why}")
        event = events.Event(datetime.now(UTC).isoformat(timespec="seconds"), self._step, what, why)
        written = self._log
        kept = (*written.events, event)[-events.MOST :]
        self._log = events.ControlLog(kept, written.paused_seconds, written.slowed_seconds)
        self._unwritten = True

    def _add(self, paused: float, slowed: float) -> None:
        written = self._log
        self._log = events.ControlLog(written.events, written.paused_seconds + paused, written.slowed_seconds + slowed)

    def _write_log(self) -> None:
        if not self._log.events:
            return
        try:
            events.write(self._run.folder, self._step, self._token, self._log)
            self._unwritten = False
        except (CdcError, OSError, pa.ArrowException) as error:
            log(f"{self._step}: could not write the log of control: {error}")


def _initial(run: Run) -> tuple[int, int, dict[str, float]]:
    limits = run.manifest.options.limits
    return limits.max_reads, limits.max_rows_per_second, limits.thresholds
