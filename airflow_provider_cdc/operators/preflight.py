"""The first step. It checks everything that can be checked before the work begins, and plans the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from airflow_provider_cdc.core.options.run import RunOptions, checked
from airflow_provider_cdc.core.positions.as_of import INTERVAL_END
from airflow_provider_cdc.core.run.manifest import MissedPast
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.hooks import open_source_with_replicas
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.operators.arguments.options import (
    ATTRIBUTES,
    Allowed,
    Given,
    accepting_options,
    check_conf,
    check_kind,
    take_options,
)
from airflow_provider_cdc.operators.arguments.types import PreflightArguments
from airflow_provider_cdc.operators.base import TargetOperator, push_xcoms
from airflow_provider_cdc.operators.ended_runs import release_what_is_over
from airflow_provider_cdc.operators.planning.checks import (
    ALLOWED,
    CLUSTER,
    PLACES,
    ParametersContext,
    Places,
    collect,
    collected,
)
from airflow_provider_cdc.operators.planning.dag_run_state import take_turn
from airflow_provider_cdc.operators.planning.missing_past import (
    may_miss_past,
)
from airflow_provider_cdc.operators.planning.plan_text import log_plan
from airflow_provider_cdc.operators.planning.planner import Planner, PlanRequest, wait_until_started
from airflow_provider_cdc.operators.spark.step import runs_where_spark_steps_run
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.sources.planning.survey import Survey

if TYPE_CHECKING:
    from airflow.sdk import Context


class PreflightOperator(TargetOperator):
    """Check the parameters, the target, Spark and the source, and decide how each table is read.

    XComs:

    - ``plan``: a list with one object per table (``table``, ``consistency``, ``reason``, estimated ``rows`` and
      ``bytes``).
    - ``skipped``: for each table that was requested but is not copied, the reason, by table name.
    - ``options``: the checked settings that ``lock_and_record`` writes into the manifest.
    - ``missed_past``: if the run cannot be exact at the end of its interval, the time of this end and the reason
      (option ``missing_past``). Empty if the run can be exact at this time.
    - ``may_miss_past``: whether the run copies the present state if a later step finds that the run cannot be exact at
      the end of its interval.
    - ``request``: the tables that the run is to copy. If tables are altered before the position is fixed,
      ``lock_and_record`` plans the run again. Then the plan in its log and in the run's record applies.
    - ``summary``: a text that describes what a run would do. Only with ``plan_only``.

    The operator takes the arguments of a run (`core.options.arguments`), as `SnapshotTaskGroup` does. Airflow shows the
    options by their names.
    """

    template_fields: Sequence[str] = ATTRIBUTES

    @accepting_options
    def __init__(self, **kwargs: Unpack[PreflightArguments]) -> None:
        given = take_options(type(self).__name__, kwargs)
        super().__init__(do_xcom_push=False, **given.others)
        # Params must keep their types, even if the DAG renders templates to text.
        self.render_template_as_native_obj = True
        # These values are not templated, because a user who triggers a run could change the values of templates.
        self.allowed = Allowed(given.allow.source_conn_ids, given.allow.targets)
        self.strict_conf = given.allow.strict_conf
        self._set(given)

    @classmethod
    def of_options(cls, given: Given, task_id: str) -> PreflightOperator:
        """Create a task from the values of options."""
        task = cls(task_id=task_id, allow=given.allow, **given.required)
        task._set(given)
        return task

    def _set(self, given: Given) -> None:
        for name, value in given.attributes.items():
            setattr(self, name, value)
        # Compare the option before Airflow renders its template. A rendered time does not show whether it comes from
        # the DAG or from a user.
        self.as_of_is_supplied = given.values.get("as_of") == INTERVAL_END

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        return self._execute(context)

    @failing
    @accessing_storage
    def resume(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Check everything anew. Airflow calls this after the task was deferred, to wait for another run."""
        return self._execute(context)

    def _execute(self, context: Context) -> dict[str, Any]:
        if self.strict_conf:
            check_conf(context["dag_run"].conf, {*context["dag"].params, *self.params})
        options = checked({name: getattr(self, name) for name in self.template_fields})
        problems: list[Problem] = []
        with ExitStack() as afterwards:
            here = runs_where_spark_steps_run(self, context)
            parameters = ParametersContext(options, self.allowed, afterwards, here)
            collect(ALLOWED, parameters, problems)
            if problems:
                # Stop here, so that a connection or folder that is not allowed is never accessed.
                raise PreflightError(problems)
            collect(PLACES, parameters, problems)
            places = parameters.places
            surveyed: tuple[Planner, Survey] | None = None
            with collected(problems, "parameter source_conn_id"):
                surveyed = self._survey(context, options, places)
            missed: MissedPast | None = None
            if surveyed is not None and places is not None and not problems and not options.plan_only:
                names = list(dict.fromkeys(plan.copy_name for plan in surveyed[1].plans))
                if take_turn(self, context, options.concurrency, places.scratch, places.lake.uri, names):
                    surveyed = self._survey(context, options, places)
            if surveyed is not None:
                may_miss = not problems and may_miss_past(self.as_of_is_supplied, options, context)
                planner, found = surveyed
                found, steps, missed = planner.plan(found, options.steps, problems, may_miss=may_miss)
                options = replace(options, steps=steps)
            collect(CLUSTER, parameters, problems)
        if problems or places is None or surveyed is None:
            raise PreflightError(problems)
        may_miss = may_miss_past(self.as_of_is_supplied, options, context)
        return self._log_result(context, options, planner, found, places, missed, may_miss)

    def _survey(self, context: Context, options: RunOptions, places: Places | None) -> tuple[Planner, Survey]:
        """Return the planner of the run, and the survey of the tables that can be copied from the source."""
        source = open_source_with_replicas(options.source_conn_id, options.steps)
        wait_until_started(source)
        if places is not None and not options.plan_only:
            # Drop the slots of ended runs first. Later, a check tests whether the server has a free replication slot
            # for this run.
            release_what_is_over(context, self, source, places.scratch, places.lake.uri)
        if self.strict_conf:
            check_kind(options, source.kind)
        planner = Planner(source, options.source_conn_id, PlanRequest.of(options), places, options.plan_only)
        return planner, planner.survey(options.steps)

    def _log_result(
        self,
        context: Context,
        options: RunOptions,
        planner: Planner,
        found: Survey,
        places: Places,
        missed: MissedPast | None,
        may_miss: bool,
    ) -> dict[str, Any]:
        steps = options.steps
        outputs = {"plan": encode(found.plans), "options": encode(steps), "skipped": found.left_out}
        outputs["missed_past"] = encode(missed) if missed is not None else {}
        outputs["may_miss_past"] = may_miss
        outputs["request"] = encode(PlanRequest.of(options))
        text = log_plan(self.log, planner.source, places, found, steps, missed, plan_only=options.plan_only)
        if text is not None:
            outputs["summary"] = text
        push_xcoms(context, outputs)
        return outputs
