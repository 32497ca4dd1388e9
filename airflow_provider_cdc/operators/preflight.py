"""The first step: everything that can be known to fail fails here, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.copies.head import source_of
from airflow_provider_cdc.core.options.run import RunOptions, checked, declared
from airflow_provider_cdc.core.positions.as_of import INTERVAL_END
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.run.plan import MissedPast
from airflow_provider_cdc.core.run.run import scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.core.storage.target import lake_of
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import PreflightError, Problem, TerminalError, TransientError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.operators.base import TargetOperator, hand_on, say_skipped, scratch_for
from airflow_provider_cdc.operators.ended_runs import release_what_is_over
from airflow_provider_cdc.operators.lake_checks import check_names, tell_leftovers
from airflow_provider_cdc.operators.missing_past import (
    in_the_present,
    may_miss_past,
    missed_past,
    say_missed_past,
)
from airflow_provider_cdc.operators.parameters import Allowed, check_conf, check_kind, take_options, taking_options
from airflow_provider_cdc.operators.plan_text import View, leaving_no_folder, pace_of, readable, summary, view_of
from airflow_provider_cdc.operators.server_start import wait_until_started
from airflow_provider_cdc.operators.spark.step import check_spark
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.planning.selections import named, select
from airflow_provider_cdc.sources.planning.survey import Survey, survey, survey_past

if TYPE_CHECKING:
    from airflow.sdk import Context


class PreflightOperator(TargetOperator):
    """Check the parameters, the target, Spark and the source, and decide how each table is read.

    XComs: ``plan``, a list with one object per table (``table``, ``consistency``, ``reason``, estimated ``rows`` and
    ``bytes``); ``skipped``, why each table that was named is not copied, by its name; and ``options``, the checked
    settings that ``lock_and_record`` writes into the manifest; ``missed_past``, the end of the interval that the run
    cannot be exact at, and why (``missing_past``); empty: it can. With ``plan_only`` also ``summary``, what a run would
    come to, in words.

    It takes every option of a run (`core.options`), each of which may be a template, and what a DAG's author allows.

    :param source_conn_ids: the connections that may be named, ``*`` for any run of characters; None: any.
    :param targets: the folders that, or below which, may be published in; see `Allowed`; None: any.
    :param strict_conf: refuse a DAG run whose conf has keys that are no params of the DAG, or that sets what is for
        another kind of source.
    """

    template_fields: Sequence[str] = tuple(option.argument for option in declared())

    @taking_options
    def __init__(
        self,
        *,
        source_conn_ids: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        strict_conf: bool = False,
        **kwargs: Any,
    ) -> None:
        options = take_options(kwargs)
        super().__init__(do_xcom_push=False, **kwargs)
        # Params keep their types, whatever the DAG's own setting is.
        self.render_template_as_native_obj = True
        for name, value in options.items():
            setattr(self, name, value)
        # Before templates are rendered: afterwards it looks like any other time.
        self.as_of_is_supplied = options["as_of"] == INTERVAL_END
        # No templates: whoever triggers a run could fill them.
        self.allowed = Allowed(source_conn_ids, targets)
        self.strict_conf = strict_conf

    @failing
    def execute(self, context: Context) -> dict[str, Any]:
        if self.strict_conf:
            check_conf(context["dag_run"].conf, {*context["dag"].params, *self.params})
        options = checked({name: getattr(self, name) for name in self.template_fields})
        problems: list[Problem] = []
        with _collected(problems, "parameter target"):
            self.allowed.check(options.source_conn_id, options.target, options.scratch)
        if problems:
            # What is not allowed is not touched.
            raise PreflightError(problems)
        with ExitStack() as afterwards:
            places = _places(options, problems, afterwards)
            with _collected(problems, "parameter spark_conn_id"):
                check_spark(options.spark_conn_id, options.spark_conf or {})
            surveyed: tuple[Source, Survey] | None = None
            with _collected(problems, "parameter source_conn_id"):
                surveyed = self._survey(context, options, places)
            missed: MissedPast | None = None
            if surveyed is not None:
                may_miss = not problems and may_miss_past(self.as_of_is_supplied, options, context)
                source, found = surveyed
                surveyed = _planned(source, found, places, options, problems)
                if problems and may_miss:
                    missed = missed_past(options, problems)
                    options = in_the_present(options)
                    problems.clear()
                    surveyed = _planned(source, found, places, options, problems)
        if problems or places is None or surveyed is None:
            raise PreflightError(problems)
        return self._tell(context, options, *surveyed, places, missed)

    def _survey(self, context: Context, options: RunOptions, places: _Places | None) -> tuple[Source, Survey]:
        """The source, and what can be copied of it."""
        source = open_hook(options.source_conn_id).get_conn()
        wait_until_started(source)
        if places is not None and not options.plan_only:
            # Before it is looked whether the server has room for this run's own.
            release_what_is_over(context, self, source, places.scratch, places.lake.uri)
        if self.strict_conf:
            check_kind(options, source.kind)
        in_part = named(options.where, options.columns)
        return source, survey(source, options.tables, options.table, options.steps.on_table_error, in_part)

    def _tell(
        self,
        context: Context,
        options: RunOptions,
        source: Source,
        found: Survey,
        places: _Places,
        missed: MissedPast | None,
    ) -> dict[str, Any]:
        tell_leftovers(Storage(places.scratch))
        say_skipped(self.log, found.skipped)
        say_missed_past(self.log, missed)
        plans = found.plans
        outputs = {"plan": encode(plans), "options": encode(options.steps), "skipped": found.skipped}
        outputs["missed_past"] = encode(missed) if missed is not None else {}
        sink = open_sink(LAKE_FORMAT, places.lake)
        if any(plan.at_upper for plan in plans):
            self._tell_view(view_of(plans, pace_of(sink, Storage(places.scratch), plans)))
        if options.plan_only:
            outputs["summary"] = summary(source, sink, Storage(places.scratch), plans, options.steps)
            self.log.info(
                "The plan. Nothing is copied, for plan_only is set:\n%s\n%s", readable(plans), outputs["summary"]
            )
        else:
            self.log.info("%s will be copied:\n%s", counted(len(plans), "table"), readable(plans))
        hand_on(context, outputs)
        return outputs

    def _tell_view(self, view: View | None) -> None:
        if view is not None and view.is_long:
            self.log.warning(
                "The run ends with %s. As long as that is open, the server removes no dead rows, of any table. Give "
                "such tables a primary key, or all tables of the run REPLICA IDENTITY FULL, and it is short or not "
                "needed.",
                view,
            )


@dataclass(frozen=True)
class _Places:
    """Where a run publishes, and the URI of the folder in which the folders of runs lie."""

    lake: Storage
    scratch: str


def _places(options: RunOptions, problems: list[Problem], afterwards: ExitStack) -> _Places | None:
    """The places that the options name, which can be written to; None: the target cannot.

    :param afterwards: what is left there for a plan alone is removed when this ends.
    """
    found: _Places | None = None
    with _collected(problems, "parameter target"):
        lake = Storage(lake_of(options.target, options.source_conn_id))
        _check_writable(lake, options, afterwards)
        found = _Places(lake, scratch_of(lake.uri))
    # Nothing more is tried on a target that cannot be written to.
    if found is not None and options.scratch:
        with _collected(problems, "parameter scratch"):
            found = _Places(lake, scratch_for(options.scratch, options.source_conn_id, lake.uri))
            _check_writable(Storage(found.scratch), options, afterwards)
    return found


def _check_writable(folder: Storage, options: RunOptions, afterwards: ExitStack) -> None:
    if options.plan_only:
        afterwards.enter_context(leaving_no_folder(folder))
    folder.check_writable()


def _planned(
    source: Source, found: Survey, places: _Places | None, options: RunOptions, problems: list[Problem]
) -> tuple[Source, Survey]:
    """The same, with the way of each table: what is rolled forward, and what the past asks for."""
    # What looks into files takes a while to import, and DAGs are parsed all the time.
    from airflow_provider_cdc.core.copies.base_selection import choose

    with _collected(problems, "parameter where"):
        found = _selected(source, found, options)
    if places is not None:
        with _collected(problems, "parameter target"):
            _check_lake(places.lake, source, options.source_conn_id, [plan.copy_name for plan in found.plans])
        if not problems:
            with _collected(problems, "parameter refresh"):
                sink = open_sink(LAKE_FORMAT, places.lake)
                found = replace(found, plans=choose(source, sink, places.scratch, found.plans, options.steps))
    with _collected(problems, "parameter as_of"):
        may_begin = not problems and not options.plan_only
        found = survey_past(
            source,
            found,
            options.tables,
            options.table,
            options.steps,
            may_begin=may_begin,
            in_part=named(options.where, options.columns),
        )
        if not problems:
            # A table that came meanwhile is no exception. What is wrong was told already.
            found = _selected(source, found, options)
    return source, found


def _selected(source: Source, found: Survey, options: RunOptions) -> Survey:
    """The same, with the part of each table that is copied."""
    return replace(found, plans=select(source, found.plans, list(found.skipped), options.where, options.columns))


def _check_lake(lake: Storage, source: Source, conn_id: str, tables: Sequence[TableName]) -> None:
    check_names(lake, tables)
    identity, position = source.here()
    open_sink(LAKE_FORMAT, lake).check_source(tables, source_of(source.kind, identity, conn_id), position)


@contextmanager
def _collected(problems: list[Problem], where: str) -> Iterator[None]:
    """Add what goes wrong to ``problems``: whoever fixes one should not have to run again to see the next."""
    try:
        yield
    except PreflightError as error:
        # One thing may be in the way of several.
        problems.extend(one for one in error.problems if one not in problems)
    except TerminalError as error:
        problems.append(Problem(error.where or where, error.message, error.hint))
    except TransientError:
        # Waiting helps against this one, but not against what was found before.
        if problems:
            raise PreflightError(problems) from None
        raise
