"""The last step: rewinds the touched rows and publishes all tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.assets import announce
from airflow_provider_cdc.core.copies.removal import Removed, read_removed
from airflow_provider_cdc.core.run.results import AnnouncedCopies, ConsolidateResult
from airflow_provider_cdc.core.run.run import Run, read_is_latest
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.metrics import send_published
from airflow_provider_cdc.operators.announce import announcement_of, extras_of, log_other_target
from airflow_provider_cdc.operators.base import dag_run_name, log_skipped, push_xcoms
from airflow_provider_cdc.operators.planning.missing_past import log_missed_past
from airflow_provider_cdc.operators.spark.step import SparkStepOperator
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.report.page import write_report

if TYPE_CHECKING:
    from airflow.sdk import Context


SHOWN_COPIES = 100
"""The number of published copies that the log lists."""


class ConsolidateOperator(SparkStepOperator):
    """Rewind every touched row to the initial position, and publish all tables at once.

    XComs (``published``, ``latest``, ``skipped``, ``superseded``, ``feed_gaps`` and ``removed`` are objects with the
    table names as keys):

    - ``published``: the URI of each table's new files.
    - ``latest``: whether ``_latest.json`` names the copy of this run. False if a newer copy exists.
    - ``skipped``: for each table that was requested but not published, the reason.
    - ``superseded``: for each table whose source was set back since the last copy, a description of how this was
      detected. The new copies of these tables begin a new history.
    - ``feed_gaps``: for each table whose row changes begin anew at its new copy (``on_feed_gap``), the earlier copy at
      which they ended (``base`` and ``start``, its run and position), and the ``reason``.
    - ``removed``: the URIs of the older copies that the option ``keep`` removed.
    - ``position``: the position at which all copies are exact.
    - ``counts``: numbers about the work of the step.

    Each copy creates one event of its table's asset (`airflow_provider_cdc.assets`), even if the task runs several
    times (`operators.announce`). With ``partition_key``, it creates a second one. The event's ``extra`` has ``run_id``,
    ``position``, ``rows``, ``path``, ``latest`` and ``schema_digest``. The position is also stored under the source's
    own key, such as ``initial_lsn``.
    ``schema_digest`` changes if the columns, their types or the key change. If only a part of the table is copied,
    ``extra`` also has ``where`` and ``columns``. ``certificate`` has the digest of the copy's rows
    (``docs/certificate.md``). If the run could not be exact at the end of its interval, ``extra``
    also has ``missed_as_of``. If the changes of the table begin anew at the copy, ``extra`` also has ``feed_gap``, with
    the copy at which they ended (``from_run_id``, ``from``) and the ``reason``. The event of a merged table also has
    ``shards``: the number of rows of each shard.
    """

    step = "consolidate"
    outputs = ("published", "skipped", "position", "superseded", "feed_gaps")
    outlets: list[Any]
    reports_lineage = True
    """Whether the task reports the lineage of its copies. A later task may report it instead."""

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        result = super().execute(context)
        run = Run.load(Storage(self.run_uri))
        latest = read_is_latest(run.folder)
        copies = extras_of(run, result["published"], latest)
        removed = read_removed(run.folder) if run.manifest.options.keep else Removed()
        announcement = announcement_of(context, run, self.source_conn_id, {table: latest[table] for table in copies})
        events = [(event.uri, copies[table]) for table, event in announcement.events.items()]
        # Assign a new list, which is for this try only. The list that the DAG's task holds must not change.
        self.outlets = announce(context["outlet_events"], self.outlets, events, run.manifest.options.partition_key)
        log_other_target(self.log, run, self.source_conn_id)
        for table in (name for name, is_latest in latest.items() if not is_latest):
            self.log.warning(
                "%s is published at %s, but _latest.json still names a newer copy, which another run published. The "
                "newer copy has a later position or belongs to a later history of the source. (If positions and "
                "histories cannot be compared, the copy that was recorded later is the newer one.) Readers of "
                "_latest.json see the newer copy. If the source was set back during this run, the next run detects "
                "this.",
                table,
                result["published"][table],
            )
        for table, why in result["superseded"].items():
            self.log.warning("%s: this copy begins a new history, and supersedes all earlier copies: %s", table, why)
        for table, gap in run.result_of(ConsolidateResult).feed_gaps.items():
            what = gap.described(run.position_text)
            self.log.warning("%s: no changes lead from the last copy to this copy: %s", table, what)
        log_skipped(self.log, result["skipped"])
        log_missed_past(self.log, run.manifest.missed_past)
        self._log_published(run, result)
        self._report(context, run)
        send_published(run, context["ti"].dag_id, self.source_conn_id)
        more = {"latest": latest, "removed": {table: list(uris) for table, uris in removed.copies.items()}}
        push_xcoms(context, more)
        self._record_announced(run, announcement.announced)
        return {**result, **more}

    def _record_announced(self, run: Run, announced: AnnouncedCopies) -> None:
        try:
            run.record_announced(announced)
        except (CdcError, OSError) as error:
            self.log.info(
                "Could not record which asset events were sent. The run's folder is therefore kept longer: %s", error
            )

    @accessing_storage
    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of the run. Airflow's OpenLineage provider calls this after the task has ended."""
        if not self.reports_lineage:
            return None
        from airflow_provider_cdc.lineage import lineage_of

        return lineage_of(Run.load(Storage(self.run_uri)), open_hook(self.source_conn_id).settings())

    def _log_published(self, run: Run, found: Mapping[str, Any]) -> None:
        rows = run.result_of(ConsolidateResult).rows
        published = sorted(found["published"].items())
        lines = [f"  {name}: {format_count(rows[name], 'row')} in {uri}" for name, uri in published[:SHOWN_COPIES]]
        if len(published) > SHOWN_COPIES:
            lines.append(f"  and {len(published) - SHOWN_COPIES:,} more; the XCom `published` lists all of them")
        self.log.info(
            "%s published, exact at %s %s:\n%s",
            format_count(len(published), "copy", "copies"),
            run.manifest.position_key,
            run.position,
            "\n".join(lines),
        )

    def _report(self, context: Context, run: Run) -> None:
        try:
            self.report_uri = write_report(run, dag_run_name(context))
        except (CdcError, OSError) as error:
            # The run is published, so a missing report must not fail the task.
            self.log.warning("Could not write the run's report: %s", error)
        else:
            self.log.info("Report of the run: %s", self.report_uri)
