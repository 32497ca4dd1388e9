"""Events of copies: each publication is announced once, however often its task is cleared, or dies.

Airflow records a task's events together with its success, in one transaction, after the task has ended. Before that the
task leaves what it announces in the run's folder (`core.told`). A later try asks Airflow whether it has those events:

- It has them: the earlier try succeeded, and somebody cleared the task. This try does not announce them again.
- It does not have them: the earlier try died before Airflow recorded its success. This try announces them.
- It does not answer: this try announces them. A second event runs a DAG twice; a missing event leaves the DAGs that
  wait for it with old data.

A copy that was announced as one of the past, and has become the latest one since (somebody removed ``_latest.json``),
is announced as the latest one, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Asset

from airflow_provider_cdc.assets import copy_asset
from airflow_provider_cdc.core.run.announced import Announced, Told, read_told
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.production import VARIABLE, production_targets

if TYPE_CHECKING:
    from airflow.sdk import Context

SKEW = timedelta(days=1)
"""By how much the clocks of Airflow's parts may differ."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Announcement:
    """What a try announces: ``events`` are those that Airflow does not have yet, by the table's name. ``told`` is what
    the run's folder has to say when the task ends."""

    events: dict[str, Announced]
    told: Told


def announcement_of(context: Context, run: Run, source_conn_id: str, latest: Mapping[str, bool]) -> Announcement:
    """What this try of a run's last task has to announce.

    :param latest: by the table's name, whether the run's copy is the latest one of its folder; of the tables that were
        published.
    """
    names = {str(entry.table.name): entry.table.copy_name for entry in run.manifest.tables}
    wanted_events = {
        table: Announced(copy_asset(source_conn_id, names[table], run.manifest.lake, latest=is_latest).uri, is_latest)
        for table, is_latest in latest.items()
    }
    announced = read_told(run.folder)
    reported: tuple[dict[str, Announced], ...] = ()
    if announced is not None and announced.announced:
        reported = announced.announced
    elif announced is not None or context["ti"].try_number != 1:
        # The version that ran then kept no record, and knew plain assets only; or the store did not take the record.
        plain = {table: copy_asset(source_conn_id, names[table], None, latest=True).uri for table in latest}
        reported = (wanted_events, {table: Announced(uri, latest=True) for table, uri in plain.items()})
    since = context["dag_run"].run_after - SKEW
    recorded = tuple(events for events in reported if events and _airflow_has(events, run.run_id, since))
    recorded_events = {(table, event.latest) for events in recorded for table, event in events.items()}
    events = {
        table: event
        for table, event in wanted_events.items()
        if (table, True) not in recorded_events and (table, event.latest) not in recorded_events
    }
    return Announcement(events, Told((*recorded, events) if events else recorded))


def say_other_target(log: Any, run: Run, source_conn_id: str) -> None:
    """Say that the copies are not those that the plain assets of their tables stand for."""
    targets = production_targets(source_conn_id)
    if targets.has(run.manifest.lake):
        return
    what = "%s is no production target of %s: DAGs that are scheduled on table_asset without this target do not run."
    if targets.named:
        log.info(what, run.manifest.lake, source_conn_id)
    else:
        log.warning(f"{what} If it is one, name it in {VARIABLE}.", run.manifest.lake, source_conn_id)


def _airflow_has(events: Mapping[str, Announced], run_id: str, since: datetime) -> bool:
    """Whether Airflow has the events that one try of a run's last task announced: all of them or none.

    :param since: no event of the run is older.
    """
    uri = events[min(events)].uri
    try:
        return any((extra or {}).get("run_id") == run_id for extra in _extras(Asset(uri=uri), since))
    except Exception as error:
        _log.warning("Whether Airflow has the events of this run is not known, so there may be two of each: %s", error)
        return False


def _extras(asset: Asset, since: datetime) -> Iterator[Any]:
    from airflow.sdk.execution_time.context import InletEventsAccessors

    events: Any = InletEventsAccessors([asset])[asset]
    # Before Airflow 3.2 there is no bound.
    if hasattr(events, "after"):
        events = events.after(since.isoformat())
    return (event.extra for event in events)
