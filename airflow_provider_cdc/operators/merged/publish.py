"""The last task of several sources: compares their shards, and publishes each merged table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_cdc.assets import announce
from airflow_provider_cdc.core.run.results import FILE as ANNOUNCED
from airflow_provider_cdc.core.run.run import Run, run_id_in
from airflow_provider_cdc.core.shards.union import (
    REQUEST,
    RESULT,
    MemberAsked,
    Union,
    UnionRequest,
    UnionResult,
    member_lake,
    read_commit,
    union_folder,
)
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.operators.announce import certificate_extra, new_events
from airflow_provider_cdc.operators.arguments.options import Allowed
from airflow_provider_cdc.operators.arguments.types import SparkArguments, Xcom
from airflow_provider_cdc.operators.base import dag_run_name, log_skipped, push_xcoms, run_id_of, same_run
from airflow_provider_cdc.operators.spark.step import SparkStepOperator
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.report.merged import write_union, write_union_failure
from airflow_provider_cdc.sources.api.source import ConnectionSettings

if TYPE_CHECKING:
    from airflow.sdk import Context


class PublishMergedOperator(SparkStepOperator):
    """Compare the keys of all shards of several sources, and publish each merged table in one step.

    XComs (objects with the names of the merged tables as keys, unless noted): ``published`` (URI), ``latest``,
    ``rows``, ``shards`` (rows by shard), ``skipped`` (the reason), ``positions`` (the position of each source, by its
    connection) and ``in_order`` (whether the positions were recorded in the order of the connections).

    Each copy creates one event of an asset, even if the task runs several times (`operators.announce`). The asset is
    that of a table with the name of the merged table, in the first source. The event's ``extra`` has ``run_id``,
    ``positions``, ``rows``, ``path``, ``latest``, ``shards`` and ``certificate``, and, as for other tables,
    ``missed_as_of``, ``where`` and ``columns``. The report is in the folder ``_merged/<run_id>``.

    :param runs: XCom ``run_uri`` of each source's lock_and_record, by its connection.
    :param target: URI of the folder in which the merged tables are published.
    :param vanished_shards: sources and shards (``source:schema.table``) that may be missing.
    :param keep: the number of merged copies to keep; 0: all of them.
    :param spark_conn_id: connection to Spark.
    :param conf: Spark properties.
    :param storage_conn_id: connection to the object store.
    :param targets: the allowed targets, as for the runs.
    """

    step = "unite"
    template_fields: Sequence[str] = ("runs", "target", "keep", "spark_conn_id", "conf", "storage_conn_id")
    outlets: list[Any]
    _folder: Storage | None = None

    def __init__(
        self,
        *,
        runs: Mapping[str, Xcom],
        target: str,
        vanished_shards: Sequence[str] = (),
        keep: int | str = 0,
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, object] | str | None = None,
        storage_conn_id: str = "",
        targets: Sequence[str] | None = None,
        **kwargs: Unpack[SparkArguments],
    ) -> None:
        super().__init__(
            source_conn_id=next(iter(runs)),
            run_uri="",
            spark_conn_id=spark_conn_id,
            conf=conf,
            storage_conn_id=storage_conn_id,
            **kwargs,
        )
        # Read the task ids before Airflow renders ``runs``, because the rendered values do not show which task pushed
        # them.
        self._recorded_by_source = {
            source: str(getattr(getattr(run, "operator", None), "task_id", "")) for source, run in runs.items()
        }
        self.runs: Any = dict(runs)
        self.target = target
        self.vanished_shards = list(vanished_shards)
        self.keep = keep
        self.allowed = Allowed(targets=targets)

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        try:
            return self._unite(context)
        except (CdcError, AirflowException) as error:
            self._report_failure(context, error)
            raise

    def _unite(self, context: Context) -> dict[str, Any]:
        self.allowed.check("", self.target)
        self._folder = folder = self.own_run(context)
        request = self._request(context)
        if self._resumed is None:
            records.write(folder, REQUEST, request)
            folder.delete_file(RESULT)
        launcher = self.open_launcher(context)
        self.run_app(launcher, context, folder, open_hook(self.source_conn_id).settings)
        union = read_commit(folder)
        if union is None or not folder.exists(RESULT):
            raise ManifestError(
                "the Spark app ended without an error, but there is no result",
                where=folder.uri,
                hint="check that the Spark driver and this task use the same storage",
            )
        result = records.read(UnionResult, folder, RESULT)
        log_skipped(self.log, result.skipped)
        self._announce(context, folder, request, union, result)
        outputs = {
            "published": result.published,
            "latest": result.latest,
            "rows": result.rows,
            "shards": result.shards,
            "positions": result.positions,
            "in_order": result.in_order,
            "skipped": result.skipped,
        }
        positions = "\n".join(f"  {source} {position}" for source, position in result.positions.items())
        copies = format_count(len(result.published), "merged table")
        self.log.info("%s published, exact at the positions\n%s", copies, positions)
        with self._reporting():
            self.report_uri = write_union(folder, union, result, dag_run_name(context))
        push_xcoms(context, outputs)
        return outputs

    @accessing_storage
    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of the merged tables. Airflow's OpenLineage provider calls this after the task has
        ended."""
        from airflow_provider_cdc.lineage import lineage_of_union

        folder = self._folder
        union = None if folder is None else read_commit(folder)
        if folder is None or union is None:
            return None
        members = {source: (Run.load(Storage(uri)), open_hook(source).settings()) for source, uri in self.runs.items()}
        return lineage_of_union(union, records.read(UnionResult, folder, RESULT), lake_of(self.target, ""), members)

    def own_run(self, context: Context) -> Storage:
        """Return the folder of this union. All tries of the task have the same folder."""
        lake = lake_of(self.target, "")
        return union_folder(Storage(lake), run_id_of(context, lake))

    def release(self, run: Storage, settings: ConnectionSettings) -> None:
        """Do nothing, because a union has nothing on the servers."""

    def _request(self, context: Context) -> UnionRequest:
        lake, dag_run = lake_of(self.target, ""), context["dag_run"]
        members = []
        for source, run_uri in self.runs.items():
            recorded_by = self._recorded_by_source[source]
            names = dag_run.dag_id, dag_run.run_id, recorded_by, member_lake(lake, source)
            if not isinstance(run_uri, str) or (recorded_by and not same_run(run_id_in(Storage(run_uri)), *names)):
                raise ConfigurationError(
                    f"{run_uri!r} is not the folder of the run of {source} in this DAG run",
                    where=f"task {self.task_id}, runs",
                    hint=f"clear the task {recorded_by or '`lock_and_record`'} and all tasks after it",
                )
            members.append(MemberAsked(source, run_uri))
        if not str(self.keep).isdigit():
            hint = "give the number of copies to keep; 0 keeps all of them"
            raise ConfigurationError(f"{self.keep!r} is not a number of copies", where="parameter keep", hint=hint)
        return UnionRequest(run_id_of(context, lake), lake, tuple(members), tuple(self.vanished_shards), int(self.keep))

    def _announce(
        self, context: Context, folder: Storage, request: UnionRequest, union: Union, result: UnionResult
    ) -> None:
        copies = {name: (copy.name(name), result.latest[name]) for name, copy in union.copies.items()}
        announcement = new_events(context, folder, union.id, self.source_conn_id, request.target, copies)
        events = [(event.uri, _extra(union, name, result)) for name, event in announcement.events.items()]
        self.outlets = announce(context["outlet_events"], self.outlets, events)
        try:
            records.write(folder, ANNOUNCED, announcement.announced)
        except (CdcError, OSError) as error:
            self.log.info("Could not record which asset events were sent: %s", error)

    def _report_failure(self, context: Context, error: Exception) -> None:
        with self._reporting():
            runs = {source: str(uri) for source, uri in self.runs.items()}
            self.report_uri = write_union_failure(self.own_run(context), runs, dag_run_name(context), error)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Write a report. If it cannot be written, this is not an error of the task."""
        try:
            yield
        except (CdcError, OSError) as error:
            self.log.warning("Could not write the report: %s", error)
        else:
            self.log.info("Report: %s", self.report_uri)


def _extra(union: Union, name: str, result: UnionResult) -> dict[str, Any]:
    """Return the ``extra`` of the event of a merged table."""
    copy = union.copies[name]
    digest, rows = copy.certificate.get("digest", ""), result.rows[name]
    return {
        "run_id": union.id,
        "positions": union.positions,
        "rows": rows,
        "path": result.published[name],
        "latest": result.latest[name],
        "shards": result.shards[name],
        **certificate_extra(rows, digest),
        **({"missed_as_of": union.missed_as_of} if union.missed_as_of else {}),
        **({"where": copy.where} if copy.where else {}),
        **({"columns": list(copy.columns)} if copy.columns else {}),
    }
