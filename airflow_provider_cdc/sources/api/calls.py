"""Calls of optional capabilities, and what happens where a source does not have one."""

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
    RollsForward,
    SharesReads,
    TellsReach,
)

_log = logging.getLogger(__name__)


def telling_reach(source: Source) -> TellsReach:
    """The source, as one that says how far its server has come.

    :raises ConfigurationError: it does not.
    """
    if not isinstance(source, TellsReach):
        raise ConfigurationError(
            f"a {source.kind} source does not say how far its server has come",
            where="parameter source_conn_id",
            hint="name a connection to another kind of source",
        )
    return source


def shared_reads(source: Source, consistencies: Collection[str], lock: LockPolicy) -> AbstractContextManager[Source]:
    """The source to read tables of these consistencies with, while the context is open: `SharesReads`, if one is
    ``exported``."""
    if "exported" in consistencies and isinstance(source, SharesReads):
        return source.share_reads(lock)
    return nullcontext(source)


def record_point(source: Source, options: StepOptions, plans: Sequence[TablePlan], run_id: str) -> InitialPoint:
    """The initial position of a run: now, or the one that ``options.as_of`` means.

    :raises ConfigurationError: the source cannot go back.
    :raises PreflightError: the tables are exact only where their reads end.
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
    # Copies that are exact where the reads end are not at this position.
    if options.standing_slot and isinstance(source, KeepsPast) and not any(plan.at_upper for plan in plans):
        _note_position(source, point, options)
    return point


def _note_position(source: KeepsPast, point: InitialPoint, options: StepOptions) -> None:
    """`KeepsPast.note_position`. It is a second chance for `note_copies`: where it cannot work, the run goes on."""
    try:
        source.note_position(point, options)
    except BaseException as error:
        if isinstance(error, CdcError) and not isinstance(error, TransientError):
            _log.warning("Could not record the position of this run on the standing slot: %s", error)
            return
        # Nobody would ever find what was made for the point, so it must not stay. The first error is the one to raise.
        try:
            if isinstance(source, KeepsForRun):
                source.discard(point.identity)
        except CdcError as also:
            _log.warning("What was made for the run may be left: %s", also)
        raise


def going_back(source: Source) -> GoesBack:
    """The source, as one that can go back.

    :raises ConfigurationError: it cannot.
    """
    if not isinstance(source, GoesBack):
        raise ConfigurationError(
            f"a copy of a {source.kind} source is exact at a position of its own run only",
            where="parameter as_of",
            hint="leave as_of empty",
        )
    return source


def check_point(source: Source, plans: Sequence[TablePlan], options: StepOptions, *, may_begin: bool = True) -> None:
    """Before a run: have the source keep its past from now on, if ``options`` ask for that, and make sure that a copy
    can be exact where they ask for it.

    :param may_begin: whether the run has no other problem: one that is refused changes nothing on the source.
    :raises PreflightError: a copy cannot be exact there, with every problem found.
    :raises ConfigurationError: the source cannot go back, or cannot keep its past.
    """
    if problems := late_problems(plans, options):
        raise PreflightError(problems)
    if may_begin and options.standing_slot and isinstance(source, KeepsPast):
        source.keep_past(plans, options)
    point = as_of.parse(options.as_of)
    # Of copies that are rolled forward that is known already.
    if point is not None and (live := [plan for plan in plans if not plan.base]):
        going_back(source).check_past(point, live, options)


def note_copies(
    source: Source, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str
) -> None:
    """`KeepsPast.note_copies`, where anything is kept."""
    if options.standing_slot and isinstance(source, KeepsPast):
        source.note_copies(options, copies, incarnation)


def give_up_past(source: Source, options: StepOptions) -> None:
    """`KeepsPast.give_up_past`, where anything is kept."""
    if options.standing_slot and isinstance(source, KeepsPast):
        source.give_up_past(options)


def rolling_forward(source: Source) -> RollsForward:
    """The source, as one whose copies can be rolled forward.

    :raises ConfigurationError: they cannot.
    """
    if not isinstance(source, RollsForward):
        raise ConfigurationError(
            f"copies of a {source.kind} source cannot be rolled forward yet",
            where="parameter refresh",
            hint="choose full or auto: the tables are then read in full",
        )
    return source


def release_run(source: Source, run_id: str) -> bool:
    """`KeepsForRun.release`, where the server keeps anything; return whether such a source does."""
    if not isinstance(source, KeepsForRun):
        return False
    source.release(run_id)
    return True


def late_problems(plans: Sequence[TablePlan], options: StepOptions) -> list[Problem]:
    """Return a problem for each option that cannot be met where tables are exact only at the end of their reads."""
    if not (late := [plan for plan in plans if plan.at_upper]):
        return []
    why = f"the copy is exact where its reads end ({late[0].table}: {late[0].reason})"
    hint = "or let the log tell what rows were before (REPLICA IDENTITY FULL), with consistency auto and without views"
    problems = []
    if options.as_of:
        problems.append(Problem("parameter as_of", f"cannot be met: {why}", f"leave as_of empty; {hint}"))
    if options.keep_slot:
        what = f"the slot stands at initial_lsn, and {why}"
        problems.append(Problem("parameter keep_slot", what, f"leave keep_slot off; {hint}"))
    return problems
