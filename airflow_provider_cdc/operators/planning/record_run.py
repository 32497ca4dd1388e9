"""Begins a run, and plans it again if its tables were altered since it was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import MissedPast, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import PreflightError, SchemaChanged
from airflow_provider_cdc.operators.base import log_skipped
from airflow_provider_cdc.operators.planning.checks import Places
from airflow_provider_cdc.operators.planning.missing_past import log_missed_past, record_or_miss
from airflow_provider_cdc.operators.planning.plan_text import readable
from airflow_provider_cdc.operators.planning.planner import Planner, PlanRequest
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.planning.point import record_point
from airflow_provider_cdc.sources.planning.shards import lake_names
from airflow_provider_cdc.sources.planning.survey import layouts

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.base import Sink

_PLANS = 3
"""The number of plans that a task tries, if tables are altered again and again."""


@dataclass(frozen=True)
class RunRecorder:
    """Fixes the position of a run, and writes its manifest.

    :param source_conn_id: the connection to ``source``.
    :param scratch: the URI of the folder that contains the folders of runs.
    :param group: the task group of the run.
    :param request: the tables that the run is to copy. None: the run cannot be planned again.
    :param may_miss_past: whether the run copies the present state if it cannot be exact at ``as_of``.
    :param log: the log of the task.
    """

    source: Source
    source_conn_id: str
    lake: Storage
    scratch: str
    sink: Sink
    run_id: str
    group: str
    request: PlanRequest | None
    may_miss_past: bool
    log: Any

    def record(
        self, plans: Sequence[TablePlan], skipped: Mapping[str, str], options: StepOptions, missed: MissedPast | None
    ) -> Run:
        """Begin the run, or continue a run that has begun. If a table no longer fits its plan, plan the run again.

        :raises SchemaChanged, PreflightError: a table no longer fits its plan, and the run cannot be planned again, or
            was planned too often.
        """
        planner = None
        if self.request is not None:
            places = Places(self.lake, self.scratch, self.sink)
            planner = Planner(self.source, self.source_conn_id, self.request, places)
        for more_tries in reversed(range(_PLANS)):
            try:
                if self.may_miss_past and options.as_of:
                    return record_or_miss(self.source, plans, options, partial(self._begin, skipped))
                return self._begin(skipped, plans, options, missed)
            except (SchemaChanged, PreflightError) as error:
                if planner is None or not more_tries:
                    raise
                self.log.warning(
                    "The run is planned again, because tables were altered since it was planned: %s", error
                )
            found, options, now_missed = planner.plan_again(options, may_miss=self.may_miss_past)
            plans, skipped, missed = found.plans, found.left_out, now_missed or missed
            log_skipped(self.log, skipped)
            log_missed_past(self.log, now_missed)
            self.log.info("%s will be copied:\n%s", format_count(len(plans), "table"), readable(plans))
        raise AssertionError("the last try returns or raises")

    def _begin(
        self, skipped: Mapping[str, str], plans: Sequence[TablePlan], options: StepOptions, missed: MissedPast | None
    ) -> Run:
        # These modules are imported only here, because they are slow to import and Airflow parses DAGs often.
        from airflow_provider_cdc.jobs.begin.initial_position import begin
        from airflow_provider_cdc.jobs.begin.preparation import lake_format

        source, run_id = self.source, self.run_id
        laid_out = layouts(lake_names(plans), list(skipped), options.lake)
        return begin(
            source,
            plans,
            options,
            partial(record_point, source, options, plans, run_id),
            run_id=run_id,
            lake=self.lake.uri,
            scratch=self.scratch,
            source_conn_id=self.source_conn_id,
            skipped=skipped,
            heads=self.sink,
            missed_past=missed,
            may_miss_past=self.may_miss_past,
            lake_format=lake_format(options.lake.format, self.sink, run_id, source, laid_out),
            group=self.group,
        )
