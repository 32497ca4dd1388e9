"""Plans a run: which tables are copied, how each is read, and from which base.

``preflight`` plans the run. Between this and the moment at which the position is fixed, tables may be altered. Then
``lock_and_record`` plans the run again in the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.run import RunOptions, StepOptions, TableOptions
from airflow_provider_cdc.core.run.manifest import MissedPast
from airflow_provider_cdc.errors import CdcError, PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.operators.planning.checks import LAKE, LakeContext, Places, collect, collected
from airflow_provider_cdc.operators.planning.missing_past import in_the_present, missed_past
from airflow_provider_cdc.sources.api.source import Source, check_load
from airflow_provider_cdc.sources.planning.selections import requested, select
from airflow_provider_cdc.sources.planning.shards import lake_names, with_shards, without_vanished
from airflow_provider_cdc.sources.planning.survey import Survey, layouts, survey, survey_past


@dataclass(frozen=True)
class PlanRequest:
    """The tables that a run is to copy: the options of the same names."""

    tables: Sequence[str]
    table: TableOptions
    where: Mapping[str, str] | None = None
    columns: Mapping[str, Sequence[str]] | None = None

    @classmethod
    def of(cls, options: RunOptions) -> PlanRequest:
        return cls(options.tables, options.table, options.where, options.columns)


@dataclass(frozen=True)
class Planner:
    """Plans the run of a request.

    :param places: None: the places of the run are unknown, because preflight found a problem with them.
    :param plan_only: whether nothing is copied, so that nothing may be created on the source.
    """

    source: Source
    source_conn_id: str
    request: PlanRequest
    places: Places | None
    plan_only: bool = False

    def survey(self, steps: StepOptions) -> Survey:
        """Return the tables that can be copied, and how each is read.

        :raises PreflightError: there are problems.
        """
        request = self.request
        parts = requested(request.where, request.columns)
        return survey(self.source, request.tables, request.table, steps.on_table_error, parts)

    def plan(
        self, found: Survey, steps: StepOptions, problems: list[Problem], *, may_miss: bool
    ) -> tuple[Survey, StepOptions, MissedPast | None]:
        """Complete the survey. Return the plan, the options that the run has with this plan, and the past time that the
        run misses.

        :param problems: the problems that were found before. This method adds to them.
        :param may_miss: whether the run copies the present state if it cannot be exact at ``as_of``.
        """
        planned = self._completed(found, steps, problems, may_miss)
        if not (problems and may_miss):
            return planned, steps, None
        missed = missed_past(steps, problems)
        steps = in_the_present(steps)
        problems.clear()
        return self._completed(found, steps, problems), steps, missed

    def plan_again(
        self, steps: StepOptions, *, may_miss: bool = False
    ) -> tuple[Survey, StepOptions, MissedPast | None]:
        """Plan the run from the beginning, as `plan` does.

        :raises PreflightError: there are problems. The error lists all of them.
        """
        problems: list[Problem] = []
        planned = self.plan(self.survey(steps), steps, problems, may_miss=may_miss)
        if problems:
            raise PreflightError(problems)
        return planned

    def _completed(self, found: Survey, steps: StepOptions, problems: list[Problem], may_miss: bool = False) -> Survey:
        """Determine whether each table is read in full or rolled forward, and what ``as_of`` requires.

        :param may_miss: as for `survey_past`.
        """
        # This module is imported only here, because it is slow to import and Airflow parses DAGs often.
        from airflow_provider_cdc.jobs.begin.base_selection import choose

        source, request, places = self.source, self.request, self.places
        with collected(problems, "parameter where (Table.where)"):
            found = self._selected(found, steps)
        with collected(problems, "parameter partition_by (Table.partition_by)"):
            layouts(lake_names(found.plans), list(found.left_out), steps.lake)
        if places is not None:
            names = list(dict.fromkeys(plan.copy_name for plan in found.plans))
            context = LakeContext(places.lake, places.sink, source, self.source_conn_id, names, bool(steps.as_of))
            collect(LAKE, context, problems)
            with collected(problems, "parameter merge"):
                found = without_vanished(places.sink, found, steps)
            if not problems:
                with collected(problems, "parameter refresh"):
                    found = replace(found, plans=choose(source, places.sink, places.scratch, found.plans, steps))
        with collected(problems, "parameter governor (Limits.governor)"):
            check_load(source, steps.limits.thresholds)
        with collected(problems, "parameter as_of"):
            found = survey_past(
                source,
                found,
                request.tables,
                request.table,
                steps,
                may_begin=not problems and not self.plan_only,
                may_miss=may_miss,
                parts=requested(request.where, request.columns),
            )
            if not problems:
                # Determine the parts again, because survey_past may have found tables that were created meanwhile.
                found = self._selected(found, steps)
        return found

    def _selected(self, found: Survey, steps: StepOptions) -> Survey:
        """Return the survey, in which each plan has the part of its table that is copied (``where`` and
        ``columns``)."""
        request = self.request
        plans = select(self.source, found.plans, list(found.skipped), request.where, request.columns)
        return with_shards(self.source, replace(found, plans=plans), steps, self.source_conn_id)


# Waits for a server that is starting up, shutting down to restart, or recovering from a crash.
#
# Such a server rejects a session at once. Without the wait, a task would use up its retries within seconds, although
# the server is available again after some minutes. If the server does not answer at all, this module does not wait,
# because the address may be wrong.


WAIT_SECONDS = 600.0
_POLL_SECONDS = 5.0

_log = logging.getLogger(__name__)


def wait_until_started(source: Source, wait_seconds: float = WAIT_SECONDS) -> None:
    """Wait until the server accepts a session, or until a session fails for a reason other than a restart.

    In the second case, the caller's next session raises the error.

    :raises SourceUnavailable: the server was still restarting after ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    is_restarting = False
    while True:
        try:
            source.here()
        except SourceUnavailable as error:
            # For a moment during a restart, no process listens on the port.
            is_restarting = is_restarting or error.is_starting
            if not is_restarting:
                return
            if time.monotonic() > deadline:
                raise
            _log.info("%s: %s; waiting for up to %.0f s", error.where, error.message, deadline - time.monotonic())
            time.sleep(_POLL_SECONDS)
        except CdcError:
            return
        else:
            return
