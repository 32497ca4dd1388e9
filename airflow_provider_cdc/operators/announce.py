"""Asset events of copies: each copy is announced once, even if its task is cleared or dies.

Airflow records a task's events together with its success, in one transaction, after the task has ended. Before the task
ends, it writes its events to a record in the run's folder (`core.run.results`). A later try asks Airflow whether the
events of the earlier try are recorded:

- Airflow has the events: the earlier try succeeded, and the task was cleared. The later try does not announce the
  events again.
- Airflow does not have the events: the earlier try died before Airflow recorded its success. The later try announces
  the events.
- Airflow does not answer: the later try announces the events. A duplicate event is better than a missing event: a
  duplicate event runs a DAG twice, but a missing event leaves the waiting DAGs with old data.

A copy that was announced as a past copy may have become the latest copy since then, because ``_latest.json`` was
removed. Such a copy is also announced as the latest copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Asset

from airflow_provider_cdc.assets import copy_asset
from airflow_provider_cdc.core.digest.totals import NAME as DEFINITION
from airflow_provider_cdc.core.run.manifest import FeedGap
from airflow_provider_cdc.core.run.results import Announced, AnnouncedCopies, ConsolidateResult, read_announced
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.shards.copy_tables import copies_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.records import digest_of
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.production import VARIABLE, production_targets

if TYPE_CHECKING:
    from airflow.sdk import Context

SKEW = timedelta(days=1)
"""The maximum difference that is assumed between the clocks of Airflow's components."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Announcement:
    """The events that a try announces.

    ``events`` has the events that Airflow does not have yet, by table name. ``announced`` is the record to write to the
    run's folder when the task ends.
    """

    events: dict[str, Announced]
    announced: AnnouncedCopies


def announcement_of(context: Context, run: Run, source_conn_id: str, latest: Mapping[str, bool]) -> Announcement:
    """Return the events that the current try of a run's last task must announce.

    :param latest: whether the run's copy is the latest copy of its folder, by the name of each published table.
    """
    names = {str(entry.table.copy_name): entry.table.copy_name for entry in run.manifest.tables}
    copies = {table: (names[table], is_latest) for table, is_latest in latest.items()}
    return new_events(context, run.folder, run.run_id, source_conn_id, run.manifest.lake, copies)


def new_events(
    context: Context,
    folder: Storage,
    run_id: str,
    source_conn_id: str,
    lake: str,
    copies: Mapping[str, tuple[TableName, bool]],
) -> Announcement:
    """Return the events that the current try of a publishing task must announce.

    :param folder: the folder with the records of the task's run.
    :param run_id: ``run_id`` in the ``extra`` of the events.
    :param copies: for each published table the name of its copies, and whether the copy is the latest copy.
    """
    wanted_events = {
        table: Announced(copy_asset(source_conn_id, name, lake, latest=is_latest).uri, is_latest)
        for table, (name, is_latest) in copies.items()
    }
    announced = read_announced(folder)
    reported: tuple[dict[str, Announced], ...] = ()
    if announced is not None and announced.announced:
        reported = announced.announced
    elif announced is not None or context["ti"].try_number != 1:
        # The earlier try left no record of its announcements. Either the record could not be written, or an old version
        # of this package ran the try. Old versions had only plain assets.
        plain = {table: copy_asset(source_conn_id, name, None, latest=True).uri for table, (name, _) in copies.items()}
        reported = (wanted_events, {table: Announced(uri, latest=True) for table, uri in plain.items()})
    since = context["dag_run"].run_after - SKEW
    recorded = tuple(events for events in reported if events and _airflow_has(events, run_id, since))
    recorded_events = {(table, event.latest) for events in recorded for table, event in events.items()}
    events = {
        table: event
        for table, event in wanted_events.items()
        if (table, True) not in recorded_events and (table, event.latest) not in recorded_events
    }
    return Announcement(events, AnnouncedCopies((*recorded, events) if events else recorded))


def extras_of(run: Run, published: Mapping[str, str], latest: Mapping[str, bool]) -> dict[str, dict[str, Any]]:
    """Return the ``extra`` of each copy's event, by table name."""
    done = run.result_of(ConsolidateResult)
    digests = _digests(run)
    return {
        name: {
            "run_id": run.run_id,
            "position": run.position_text,
            run.manifest.position_key: run.position_text,
            "rows": done.rows[name],
            "path": published[name],
            "latest": latest[name],
            "schema_digest": digest_of(_shape(copy.first.table)),
            **certificate_extra(done.rows[name], digests.get(name, "")),
            **({"shards": done.shards[name]} if copy.merged else {}),
            **({"missed_as_of": run.manifest.missed_as_of} if run.manifest.missed_past is not None else {}),
            **_part(copy.first.table),
            **(_gap(done.feed_gaps[name]) if name in done.feed_gaps else {}),
        }
        for copy in copies_of(run.manifest.tables)
        if (name := str(copy.name)) in published
    }


def _digests(run: Run) -> dict[str, str]:
    # Import PyArrow late, because DAG files are parsed continually.
    from airflow_provider_cdc.core.run.commit_record import decision_of
    from airflow_provider_cdc.core.shards.published import digests_of_copies

    return digests_of_copies(run.manifest, decision_of(run)) if run.committed else {}


def certificate_extra(rows: int, digest: str) -> dict[str, Any]:
    """Return the total of a copy's certificate. Empty: it is not known."""
    return {"certificate": {"definition": DEFINITION, "rows": rows, "digest": digest}} if digest else {}


def _part(table: Table) -> dict[str, Any]:
    """Return a description of the part of a table that was copied. Empty: the whole table was copied."""
    selection = table.selection
    part = {"where": selection.condition, "columns": list(selection.columns)}
    return {name: value for name, value in part.items() if value}


def _gap(gap: FeedGap) -> dict[str, Any]:
    return {"feed_gap": {"from_run_id": gap.base, "from": gap.start, "reason": gap.reason}}


def _shape(table: Table) -> list[Any]:
    if table.shard is not None:
        merged = [[column.name, column.type, column.nullable] for column in table.shard.columns]
        return [merged, list(table.published_key), list(table.shard.origin_columns)]
    return [[[column.name, column.type, column.nullable] for column in table.columns], list(table.key)]


def log_other_target(log: Any, run: Run, source_conn_id: str) -> None:
    """Log that the target is not a production target, so the plain assets of the tables get no events."""
    targets = production_targets(source_conn_id)
    if targets.has(run.manifest.lake):
        return
    what = "%s is not a production target of %s: DAGs scheduled on table_asset without this target do not run."
    if targets.named:
        log.info(what, run.manifest.lake, source_conn_id)
    else:
        log.warning(
            f"{what} If this target is a production target, add it to {VARIABLE}.", run.manifest.lake, source_conn_id
        )


def _airflow_has(events: Mapping[str, Announced], run_id: str, since: datetime) -> bool:
    """Return whether Airflow has recorded the events that one try of a run's last task announced. Airflow has recorded
    either all of these events or none of them.

    :param since: a time that is earlier than all events of the run.
    """
    uri = events[min(events)].uri
    try:
        return any((extra or {}).get("run_id") == run_id for extra in _extras(Asset(uri=uri), since))
    except Exception as error:
        _log.warning(
            "Could not query Airflow for the asset events of this run. So each event may be sent twice: %s", error
        )
        return False


def _extras(asset: Asset, since: datetime) -> Iterator[Any]:
    from airflow.sdk.execution_time.context import InletEventsAccessors

    events: Any = InletEventsAccessors([asset])[asset]
    # Airflow before 3.2 cannot filter events by time.
    if hasattr(events, "after"):
        events = events.after(since.isoformat())
    return (event.extra for event in events)
