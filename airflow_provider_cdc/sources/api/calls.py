"""Calls optional capabilities of sources, and handles sources that do not have them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError, Problem, TransientError
from airflow_provider_cdc.sources.api.source import Source

if TYPE_CHECKING:
    pass
from airflow_provider_cdc.sources.api.optional_capabilities import (
    GoesBack,
    KeepsForRun,
    KeepsPast,
    KeepsWindow,
    SharesReads,
    TellsReach,
)
from airflow_provider_cdc.sources.api.rolling_forward import RollsForward

_log = logging.getLogger(__name__)


def telling_reach(source: Source) -> TellsReach:
    """Return ``source`` typed as a source that reports how far its server has advanced.

    :raises ConfigurationError: the source does not report this.
    """
    if not isinstance(source, TellsReach):
        raise ConfigurationError(
            f"a {source.kind} source does not report how far its server has advanced",
            where="parameter source_conn_id",
            hint="name a connection to another kind of source",
        )
    return source


def shared_reads(source: Source, consistencies: Collection[str], lock: LockPolicy) -> AbstractContextManager[Source]:
    """Return a context with a source that reads tables with these consistencies. If one of the consistencies is
    ``exported``, all sessions of the source read one shared snapshot (`SharesReads`)."""
    if "exported" in consistencies and isinstance(source, SharesReads):
        return source.share_reads(lock)
    return nullcontext(source)


def record_point(source: Source, options: StepOptions, plans: Sequence[TablePlan], run_id: str) -> InitialPoint:
    """Record the initial position of a run. It is the current position, or the position that ``options.as_of`` names.

    :raises ConfigurationError: the source does not support past positions.
    :raises PreflightError: an option conflicts with tables that are exact only at the end of their reads.
    """
    if problems := late_problems(plans, options):
        raise PreflightError(problems)
    asked_point = as_of.parse(options.as_of)
    if asked_point is None:
        point = source.record_initial(plans, options.lock, run_id)
    else:
        point = going_back(source).record_past(asked_point, plans, options, run_id)
    if isinstance(source, KeepsWindow) and any(plan.base for plan in plans):
        point = source.keep_window(point, plans, options, run_id)
    # Do not record this position if some copies are exact only at the end of their reads. These copies are not exact at
    # this position.
    if options.standing_slot and isinstance(source, KeepsPast) and not any(plan.at_upper for plan in plans):
        _note_position(source, point, options)
    return point


def _note_position(source: KeepsPast, point: InitialPoint, options: StepOptions) -> None:
    """Call `KeepsPast.note_position`. The recorded position is only a fallback for `note_copies`, so the run continues
    if the position cannot be recorded.

    After a transient or unexpected error, discard the objects that were created for ``point``, and raise the error.
    """
    try:
        source.note_position(point, options)
    except BaseException as error:
        if isinstance(error, CdcError) and not isinstance(error, TransientError):
            _log.warning("Could not record the position of this run on the standing slot: %s", error)
            return
        # No later task would find the objects that were created for the point, so remove them now. Raise the first
        # error, even if the removal fails.
        try:
            if isinstance(source, KeepsForRun):
                source.discard(point.identity)
        except CdcError as also:
            _log.warning("Could not remove the objects that were created for the run on the source: %s", also)
        raise


def going_back(source: Source) -> GoesBack:
    """Return ``source`` typed as a source whose copies can be exact at a past position.

    :raises ConfigurationError: the source does not support past positions.
    """
    if not isinstance(source, GoesBack):
        raise ConfigurationError(
            f"a run cannot copy a {source.kind} source as of a past position",
            where="parameter as_of",
            hint="leave the option `as_of` empty",
        )
    return source


def check_point(source: Source, plans: Sequence[TablePlan], options: StepOptions, *, may_begin: bool = True) -> None:
    """Before a run begins, check that a copy can be exact at the requested position. If ``options`` request a standing
    slot, first make the source keep its log from now on.

    :param may_begin: whether the run has no other problems. If there are other problems, the run is rejected, so
        nothing is changed on the source.
    :raises PreflightError: a copy cannot be exact at the requested position. The error lists every problem.
    :raises ConfigurationError: the source does not support past positions, or cannot keep its log from run to run.
    """
    if problems := late_problems(plans, options):
        raise PreflightError(problems)
    if may_begin and options.standing_slot and isinstance(source, KeepsPast):
        source.keep_past(plans, options)
    point = as_of.parse(options.as_of)
    # Check only tables that are read in full. Copies that are rolled forward have already been checked.
    if point is not None and (live := [plan for plan in plans if not plan.base]):
        going_back(source).check_past(point, live, options)


def note_copies(
    source: Source, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str
) -> None:
    """Call `KeepsPast.note_copies` if the run has a standing slot."""
    if options.standing_slot and isinstance(source, KeepsPast):
        source.note_copies(options, copies, incarnation)


def give_up_past(source: Source, options: StepOptions) -> None:
    """Call `KeepsPast.give_up_past` if the run has a standing slot."""
    if options.standing_slot and isinstance(source, KeepsPast):
        source.give_up_past(options)


def rolling_forward(source: Source) -> RollsForward:
    """Return ``source`` typed as a source whose copies can be rolled forward.

    :raises ConfigurationError: copies of the source cannot be rolled forward.
    """
    if not isinstance(source, RollsForward):
        raise ConfigurationError(
            f"copies of a {source.kind} source cannot be rolled forward yet",
            where="parameter refresh",
            hint="set `refresh` to `full` or `auto`: the run then reads the tables in full",
        )
    return source


def release_run(source: Source, run_id: str) -> bool:
    """Call `KeepsForRun.release` if the source implements this method, and return whether the source implements it."""
    if not isinstance(source, KeepsForRun):
        return False
    source.release(run_id)
    return True


def late_problems(plans: Sequence[TablePlan], options: StepOptions) -> list[Problem]:
    """Return a problem for each option that conflicts with tables that are exact only at the end of their reads."""
    if not (late := [plan for plan in plans if plan.at_upper]):
        return []
    why = f"the copy is exact where its reads end ({late[0].table}: {late[0].reason})"
    hint = (
        "or set REPLICA IDENTITY FULL on the tables, so that the log has the old rows, set `consistency` to "
        "`auto`, and copy no views"
    )
    problems = []
    if options.as_of:
        problems.append(Problem("parameter as_of", f"cannot be met: {why}", f"leave the option `as_of` empty; {hint}"))
    if options.keep_slot:
        what = f"the slot is at initial_lsn, but {why}"
        problems.append(Problem("parameter keep_slot", what, f"leave the option `keep_slot` off; {hint}"))
    return problems
