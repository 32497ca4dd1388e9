"""The task between the checks and the reads of several sources: checks that their shards can be merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow_provider_cdc.core.positions.facts import source_of
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT, TablePlan
from airflow_provider_cdc.core.shards.union import VANISHED_HINT, missing_shards, shard_name
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.operators.arguments.options import Allowed
from airflow_provider_cdc.operators.arguments.types import TaskArguments, Xcom
from airflow_provider_cdc.operators.base import TargetOperator
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.sinks.registry import open_sink

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckMergedOperator(TargetOperator):
    """Check, before any row is read, that the shards of several sources fit into one table each.

    :param source_conn_ids: the connections to the sources.
    :param plans: XCom ``plan`` of each source's preflight, by its connection.
    :param target: URI of the folder in which the merged tables are published.
    :param vanished_shards: sources and shards (``source:schema.table``) that may be missing.
    :param as_of: as for the runs. A position is refused.
    :param on_table_error: as for the runs.
    :param storage_conn_id: connection to the object store.
    :param targets: the allowed targets, as for the runs.
    """

    template_fields: Sequence[str] = ("plans", "target", "as_of", "on_table_error", "storage_conn_id")

    def __init__(
        self,
        *,
        source_conn_ids: Sequence[str],
        plans: Mapping[str, Xcom],
        target: str,
        vanished_shards: Sequence[str] = (),
        as_of: Any = "",
        on_table_error: str = "fail",
        storage_conn_id: str = "",
        targets: Sequence[str] | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source_conn_ids = list(source_conn_ids)
        self.plans: Any = dict(plans)
        self.target = target
        self.vanished_shards = list(vanished_shards)
        self.as_of = as_of
        self.on_table_error = on_table_error
        self.storage_conn_id = storage_conn_id
        self.allowed = Allowed(targets=targets)

    @failing
    @accessing_storage
    def execute(self, context: Context) -> None:
        # This module is imported only here, because it imports Arrow, which is slow, and Airflow parses DAGs often.
        from airflow_provider_cdc.core.shards.union import PartOfMerged, unfit_as_of, unfit_sources, unlike_sources

        self.allowed.check("", self.target)
        what, hint = unfit_sources({source: _source(source) for source in self.source_conn_ids})
        if what:
            raise PreflightError([Problem("parameter source_conn_ids", what, hint)])
        # The value is valid, because preflight has checked it.
        what, hint = unfit_as_of(self.as_of or "")
        if what:
            raise PreflightError([Problem("parameter as_of", what, hint)])
        plans = self._plans()
        shards = {
            source: {str(name): [plan for plan in own if plan.lake_name == name] for name in _merged(own)}
            for source, own in plans.items()
        }
        parts = {
            source: {
                name: PartOfMerged(own[0].shard, own[0].selection) for name, own in of_source.items() if own[0].shard
            }
            for source, of_source in shards.items()
        }
        problems = [
            Problem(f"parameter merge, {name}", what, "make the tables alike in all sources")
            for name, reasons in unlike_sources(parts).items()
            for what in reasons
        ]
        names = list(dict.fromkeys(name for of_source in shards.values() for name in of_source))
        for name in names:
            problems += self._incomplete(name, shards)
        if problems and (self.on_table_error != "skip" or len({problem.where for problem in problems}) == len(names)):
            raise PreflightError(problems)
        for problem in problems:
            self.log.warning("LEFT OUT: %s: %s", problem.where, problem.what)
        self._log_plan(names, shards)

    def _plans(self) -> dict[str, list[TablePlan]]:
        return {
            source: records.decode(list[TablePlan], self.plans[source], f"XCom plan of preflight of {source}")
            for source in self.source_conn_ids
        }

    def _incomplete(self, name: str, shards: Mapping[str, Mapping[str, Sequence[TablePlan]]]) -> list[Problem]:
        """Return the problems of a merged table: sources or shards that are missing."""
        where = f"parameter merge, {name}"
        if lacking := [source for source, of_source in shards.items() if name not in of_source]:
            what = f"{', '.join(lacking)}: the run leaves it out"
            return [Problem(where, what, "see the log of the task `preflight` of this source")]
        own = [shard_name(source, plan.table) for source, of_source in shards.items() for plan in of_source[name]]
        copy_name = next(iter(shards.values()))[name][0].copy_name
        head = open_sink(LAKE_FORMAT, Storage(lake_of(self.target, ""))).head(copy_name)
        if head is None:
            return []
        if not head.positions:
            what = "the target has copies of one source with this name"
            return [Problem(where, what, "use another target, or give the merged table another name")]
        if missing := missing_shards(head.shards, own, self.vanished_shards):
            what = f"its latest copy (run {head.run_id}) also has the rows of {', '.join(missing[:5])}"
            return [Problem(where, f"{what}, which the runs do not copy", VANISHED_HINT)]
        return []

    def _log_plan(self, names: Sequence[str], shards: Mapping[str, Mapping[str, Sequence[TablePlan]]]) -> None:
        lines = []
        for name in names:
            of_name = [(source, plan) for source, own in shards.items() for plan in own.get(name, ())]
            rows = sum(plan.rows for _, plan in of_name)
            lines.append(f"  {name}: {format_count(len(of_name), 'shard')}, about {format_count(rows, 'row')}")
            lines += [f"  └ {shard_name(source, plan.table)}: {plan.rows:,}, {plan.reason}" for source, plan in of_name]
        self.log.info("Tables that will be merged from %s:\n%s", format_count(len(shards), "source"), "\n".join(lines))


def _source(source_conn_id: str) -> dict[str, str]:
    """Return the description of the source to which a connection leads now."""
    source = open_hook(source_conn_id).get_conn()
    return source_of(source.kind, source.here()[0], source_conn_id)


def _merged(plans: Sequence[TablePlan]) -> list[Any]:
    return list(dict.fromkeys(plan.lake_name for plan in plans if plan.shard is not None))
