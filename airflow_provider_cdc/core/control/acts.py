"""The acts of operators on a run: pause, resume, stop, and other limits.

Each act is a separate record in the run's folder, ``control/acts/<number>.json``, which only one writer can create. So
the acts of several operators have an order, and all acts stay for the run's report. The state that the operators want
is the result of all acts in this order, so it survives a retry, a clear and a restart of Airflow.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from airflow_provider_cdc.core.options.declare import Accepted
from airflow_provider_cdc.core.options.run import THRESHOLDS, LimitOptions
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, RunStopped

ACTS = "control/acts"
PAUSE, RESUME, STOP, LIMIT = "pause", "resume", "stop", "limit"
VERBS = (PAUSE, RESUME, STOP, LIMIT)
_AGAIN = "trigger a new run, or clear the task `lock_and_record` and all tasks after it"
_READS = Accepted("a whole number", Annotated[int, msgspec.Meta(ge=0, le=10**15)] | None, {})
_NUMBERED = re.compile(rf"{ACTS}/([0-9]+)\.json")


@dataclass(frozen=True)
class Act:
    """One act of an operator.

    ``manifest`` is the digest of the manifest that was valid at that time: a stop applies to this manifest, and to
    the manifests that continue it.
    ``max_reads``, ``max_rows_per_second`` and ``governor`` (thresholds by signal) are the new values of an act of the
    kind `LIMIT`; None, or not contained: unchanged. ``token`` identifies the writer of the record.
    """

    verb: str
    by: str
    at: str
    manifest: str
    reason: str = ""
    max_reads: int | None = None
    max_rows_per_second: int | None = None
    governor: dict[str, float] = field(default_factory=dict)
    token: str = ""

    def __str__(self) -> str:
        return f"{self.by}{f': {self.reason}' if self.reason else ''}"

    @property
    def limits(self) -> str:
        """The new limits in words."""
        told = [
            *([f"max_reads = {self.max_reads}"] if self.max_reads is not None else []),
            *([f"max_rows_per_second = {self.max_rows_per_second}"] if self.max_rows_per_second is not None else []),
            *(f"{signal}: {threshold:g}" for signal, threshold in self.governor.items()),
        ]
        return ", ".join(told)


@dataclass(frozen=True)
class Wanted:
    """The state that the operators want, and the limits that apply. ``pause`` and ``stop`` are the acts that paused or
    stopped the run."""

    max_reads: int = 0
    max_rows_per_second: int = 0
    thresholds: Mapping[str, float] = field(default_factory=dict)
    pause: Act | None = None
    stop: Act | None = None


def wanted(limits: LimitOptions, acts: Sequence[Act], manifests: Collection[str]) -> Wanted:
    """Return the state after all acts.

    :param limits: the limits with which the run began.
    :param manifests: `Run.digests`. A run that was stopped may have begun anew since.
    """
    reads, rows, thresholds = limits.max_reads, limits.max_rows_per_second, limits.thresholds
    pause: Act | None = None
    for act in acts:
        if act.verb == STOP:
            if act.manifest in manifests:
                return Wanted(reads, rows, thresholds, None, act)
            pause = None
        elif act.verb == LIMIT:
            reads = reads if act.max_reads is None else act.max_reads
            rows = rows if act.max_rows_per_second is None else act.max_rows_per_second
            thresholds = {name: act.governor.get(name, threshold) for name, threshold in thresholds.items()}
        else:
            pause = act if act.verb == PAUSE else None
    return Wanted(reads, rows, thresholds, pause)


class Acts:
    """The acts of a run. Records that were read once are not read again, because they never change."""

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self._known: dict[int, Act] = {}

    def read(self) -> list[Act]:
        """Return all acts, in their order.

        :raises ManifestError: a record is damaged.
        """
        for name in self._folder.files(ACTS):
            match = _NUMBERED.fullmatch(name)
            if match and int(match[1]) not in self._known:
                self._known[int(match[1])] = records.read(Act, self._folder, name)
        return [self._known[number] for number in sorted(self._known)]


def act_on(
    folder: Storage,
    verb: str,
    by: str,
    reason: str = "",
    *,
    max_reads: int | None = None,
    max_rows_per_second: int | None = None,
    governor: Mapping[str, float] | None = None,
) -> Act:
    """Record an act on the run in ``folder``, and return it.

    :raises ConfigurationError: the run has ended, or the act has no effect on it.
    :raises ManifestError: there is no run in ``folder``.
    """
    run = Run.load(folder)
    present = Acts(folder).read()
    state = wanted(run.manifest.options.limits, present, run.digests)
    # A record that cannot be read again would make the run uncontrollable for good.
    if not _READS.holds(max_reads) or not _READS.holds(max_rows_per_second) or not THRESHOLDS.holds(governor):
        raise ConfigurationError(
            "a limit is negative or not a number",
            where=folder.uri,
            hint="give a number of at least 0 (0: no limit), and for the governor an object with numbers, such as "
            '{"threads_running": 40}',
        )
    thresholds = THRESHOLDS.plain(governor)
    if problem := _problem(run, state, verb, (max_reads, max_rows_per_second, governor), thresholds):
        raise ConfigurationError(problem[0], where=folder.uri, hint=problem[1])
    act = Act(
        verb,
        _writable(by),
        datetime.now(UTC).isoformat(timespec="seconds"),
        run.digest,
        _writable(reason),
        max_reads,
        max_rows_per_second,
        thresholds,
        uuid.uuid4().hex,
    )
    number = len(present) + 1
    while not folder.create_json(f"{ACTS}/{number:06}.json", records.encode(act)):
        number += 1
    return act


def _writable(text: str) -> str:
    """Replace what is not text, such as bytes of a command line that are not UTF-8."""
    return text.encode(errors="replace").decode()


def _problem(
    run: Run, state: Wanted, verb: str, given: tuple[object, ...], thresholds: Mapping[str, float]
) -> tuple[str, str] | None:
    """Return what is wrong with an act, with a hint; None: the act is possible."""
    if verb not in VERBS:
        return f"{verb!r} is not an act", f"give one of {', '.join(VERBS)}"
    if is_published(run):
        return "the run has published its copies, so it can no longer be controlled", "name a run in progress"
    if run.committed:
        return "the run has made its commit, so it can no longer be controlled", "wait for its end: it publishes now"
    if state.stop is not None:
        return f"the run was stopped at {state.stop.at} by {state.stop}", _AGAIN
    if verb == LIMIT:
        if all(value is None for value in given):
            return "no limit is given", "give max_reads, max_rows_per_second or a threshold of the governor"
        if unknown := sorted(set(thresholds) - set(state.thresholds)):
            watched = ", ".join(state.thresholds) or "nothing"
            return f"the run does not watch {unknown[0]!r}", f"it watches {watched} (option `governor`)"
    elif any(value is not None for value in given):
        return f"limits are given, but the act is {verb}", f"give the act {LIMIT} for other limits"
    if verb == RESUME and state.pause is None:
        return "the run is not paused", "nothing has to be done"
    return None


def check_not_stopped(folder: Storage) -> None:
    """Check, before Spark starts, that the run in ``folder`` was not stopped.

    :raises RunStopped: an operator stopped the run.
    """
    if not Run.exists(folder):
        return
    acts = Acts(folder).read()
    if not any(act.verb == STOP for act in acts):
        return
    run = Run.load(folder)
    stop = wanted(run.manifest.options.limits, acts, run.digests).stop
    if stop is not None and not run.committed:
        raise stopped(folder, stop)


def stopped(folder: Storage, stop: Act) -> RunStopped:
    """Return the error of a run that was stopped."""
    return RunStopped(
        f"the run was stopped at {stop.at} by {stop}",
        where=folder.uri,
        hint=f"nothing of it is published, and it is not retried. To copy the tables, {_AGAIN}",
    )


# The log of what the steps of a run did because of an act or of the governor. It is for the report and the metrics.


EVENTS = "control/events"
MOST = 500
"""The number of the latest events that are kept of each try of a step."""


@dataclass(frozen=True)
class Event:
    """Something that a step did, at a time (ISO 8601): ``what``, and the ``why``."""

    at: str
    step: str
    what: str
    why: str


@dataclass(frozen=True)
class ControlLog:
    """The events of one try of a step. ``paused_seconds`` is the time for which it was paused by an operator,
    ``slowed_seconds`` the time for which the governor slowed or paused it."""

    events: tuple[Event, ...] = ()
    paused_seconds: float = 0.0
    slowed_seconds: float = 0.0


def write(folder: Storage, step: str, token: str, log: ControlLog) -> None:
    """Write the log of one try of a step.

    :raises CdcError, OSError: the store failed.
    """
    folder.note_json(f"{EVENTS}/{step}-{token}.json", records.encode(log))


def read(folder: Storage) -> ControlLog:
    """Return the logs of all tries as one log, with the events in the order of their times. Logs that cannot be read
    are left out, because they are only for display."""
    logs: list[ControlLog] = []
    with suppress(CdcError, OSError):
        for name in folder.files(EVENTS):
            with suppress(CdcError, OSError):
                logs.append(records.read(ControlLog, folder, name))
    events = sorted((event for log in logs for event in log.events), key=lambda event: event.at)
    return ControlLog(
        tuple(events),
        round(sum(log.paused_seconds for log in logs), 3),
        round(sum(log.slowed_seconds for log in logs), 3),
    )
