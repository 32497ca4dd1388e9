"""Records the initial position of a run, and checks before the run begins that its copies can be exact there."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.errors import CdcError, PreflightError, Problem, TransientError
from airflow_provider_cdc.sources.api.source import Source

_log = logging.getLogger(__name__)


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
        point = source.record_past(asked_point, plans, options, run_id)
    if any(plan.base for plan in plans):
        point = source.keep_window(point, plans, options, run_id)
    # Do not record this position if some copies are exact only at the end of their reads. These copies are not exact at
    # this position.
    if options.standing_slot and not any(plan.at_upper for plan in plans):
        _note_position(source, point, options)
    return point


def _note_position(source: Source, point: InitialPoint, options: StepOptions) -> None:
    """Call `Source.note_position`. The recorded position is only a fallback for `note_copies`, so the run continues
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
            source.discard(point.identity)
        except CdcError as also:
            _log.warning("Could not remove the objects that were created for the run on the source: %s", also)
        raise


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
    if may_begin and options.standing_slot:
        source.keep_past(plans, options)
    point = as_of.parse(options.as_of)
    # Check only tables that are read in full. Copies that are rolled forward have already been checked.
    if point is not None and (live := [plan for plan in plans if not plan.base]):
        source.check_past(point, live, options)


def late_problems(plans: Sequence[TablePlan], options: StepOptions) -> list[Problem]:
    """Return a problem for each option that conflicts with tables that are exact only at the end of their reads."""
    if not (late := [plan for plan in plans if plan.at_upper]):
        return []
    why = f"the copy is exact where its reads end ({late[0].table}: {late[0].reason})"
    hint = (
        "or set REPLICA IDENTITY FULL on the tables, so that the log has the old rows, set `Read.consistency` to "
        "`auto`, and copy no views"
    )
    problems = []
    if options.as_of:
        problems.append(Problem("parameter as_of", f"cannot be met: {why}", f"leave the option `as_of` empty; {hint}"))
    if options.keep_slot:
        what = f"the slot is at initial_lsn, but {why}"
        problems.append(Problem("parameter keep_slot (Read.keep_slot)", what, f"leave `Read.keep_slot` off; {hint}"))
    return problems
