"""Checks of the lake: colliding folder names, runs that were already published, and files left by failed runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.run.run import WORK_FOLDERS, Run, is_published, run_id_in
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, ManifestError, PreflightError, Problem
from airflow_provider_cdc.hooks.catalog import lake_settings
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.api.source import Source

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.sinks.base import Sink

OLD = timedelta(days=7)
"""An unpublished run is considered dead if it began longer ago than this period."""

LOOKED_AT = 100
SHOWN = 10
_READERS = 8

_log = logging.getLogger(__name__)


def check_names(target: Storage, tables: Sequence[TableName]) -> None:
    """Check that each table in ``tables`` gets its own folder in this store.

    :raises PreflightError: the store ignores case, so two tables would share a folder.
    """
    by_name: dict[str, list[TableName]] = {}
    for table in tables:
        by_name.setdefault(folder_name(table).lower(), []).append(table)
    alike = [same for same in by_name.values() if len(same) > 1]
    if not target.ignores_case():
        for same in alike:
            _log.warning(
                "%s differ only in case. This store is case-sensitive, but a catalog or a disk that ignores case would "
                "mix them up.",
                _listed(same),
            )
        return
    problems = [
        Problem(
            _listed(same),
            "the names of these tables differ only in case. The store ignores case, so the tables would share one "
            "folder",
            "copy the tables into different targets, in separate runs, or use a case-sensitive store",
        )
        for same in alike
    ]
    there = {name.lower(): name for name in target.folders()}
    problems += [
        Problem(
            str(tables[0]),
            f"the store ignores case, and already contains the folder {there[name]} of another table",
            "use another target for one of the two tables",
        )
        for name, tables in by_name.items()
        if len(tables) == 1 and there.get(name, folder_name(tables[0])) != folder_name(tables[0])
    ]
    if problems:
        raise PreflightError(problems)


def check_not_made_before(run: Storage, sink: Sink, tables: Sequence[TableName]) -> None:
    """Check that a run has no published copies if there is no manifest in its folder ``run``.

    If there were published copies, the run would read all tables again. It could not publish the tables, because the
    folders for its copies already exist in the lake.

    :raises ManifestError: the run has published copies. The records of the run were removed, or are in another scratch.
    """

    def files(table: TableName) -> list[str]:
        uri = sink.copy_uri(run_id_in(run), table)
        return [uri] if uri else []

    with ThreadPoolExecutor(_READERS) as readers:
        existing_files = [uri for uris in readers.map(files, tables) for uri in uris]
    # Look for the files first, and then for the manifest. In the other order, a concurrent try could begin and publish
    # the run between the two steps.
    if existing_files and not Run.exists(run):
        raise ManifestError(
            f"this run has published copies, such as {existing_files[0]}, but no manifest. The manifest was removed, "
            "or is in another scratch folder",
            where=run.uri,
            hint="trigger a new run; or set `Lake.scratch` back to the folder with which this run began, and "
            "clear the failed task",
        )


def check_not_of_a_deleted_dag_run(run: Run, options: StepOptions) -> None:
    """Check that ``run`` is not published. The run already exists, although this is the first try of the DAG run.

    The run exists because an earlier DAG run with the same name and date was deleted. If the run is published, the new
    DAG run would succeed without copying anything. Such a success is correct only if both DAG runs request the same
    past position.

    :param options: the options of the new DAG run.
    :raises ManifestError: the run is published, and the two DAG runs do not request the same past position.
    """
    manifest = run.manifest
    if is_published(run) and not (options.as_of and options.as_of == manifest.options.as_of):
        raise ManifestError(
            "this DAG run would copy nothing: an earlier DAG run with the same id and date, which was deleted, began "
            f"on {manifest.created_at} and has already published its copies",
            where=run.folder.uri,
            hint="trigger a DAG run with another run id and date",
        )


@dataclass(frozen=True)
class UnfinishedFiles:
    """A run that began long ago and was not published. No reader uses the files in its ``folders`` (URIs)."""

    run_id: str
    began: str
    folders: tuple[str, ...]


def find_leftovers(scratch: Storage, now: datetime | None = None) -> list[UnfinishedFiles]:
    """Return the dead runs that left files in ``scratch``. Of the runs that are older than `OLD`, only the newest
    `LOOKED_AT` runs are examined."""
    horizon = (now or datetime.now(UTC)) - OLD
    names = [name for name in scratch.folders() if name < f"{horizon:%Y%m%dT%H%M%SZ}"]
    with ThreadPoolExecutor(_READERS) as readers:
        leftovers = list(readers.map(lambda name: _leftover(scratch, name, horizon), names[-LOOKED_AT:]))
    return [leftover for leftover in leftovers if leftover is not None]


def log_leftovers(scratch: Storage) -> None:
    """Log the folders that failed runs left, and how to remove these folders. An error is only logged and does not fail
    the task."""
    try:
        leftovers = find_leftovers(scratch)
    except (CdcError, OSError) as error:
        _log.info("Could not look for files of failed runs in %s: %s", scratch, error)
        return
    if not leftovers:
        return
    folders = [folder for leftover in leftovers[:SHOWN] for folder in leftover.folders]
    _log.warning(
        "These runs began more than %s ago and were never published: %s. No reader uses their files. Unless you "
        "still want to clear tasks of these runs, remove these folders (CleanOperator does so)%s:\n%s",
        format_count(OLD.days, "day"),
        format_count(len(leftovers), "run"),
        f" (the first {SHOWN} runs)" if len(leftovers) > SHOWN else "",
        "\n".join(f"  {folder}" for folder in folders),
    )


def warn_of_readers(lake: Storage, format: str, source: Source, plans: Sequence[TablePlan]) -> None:
    """Log the columns that some readers of the copies misread. If the source cannot be asked for the columns now, this
    is only logged."""
    # These modules are imported only here, because they import Arrow, and Airflow parses DAGs often.
    from airflow_provider_cdc.core.tables.published import published_schema
    from airflow_provider_cdc.sinks.reader_warnings import reader_warnings

    schemas: dict[TableName, pa.Schema] = {}
    try:
        for plan, table in zip(plans, source.tables_of(plans), strict=True):
            table = replace(table, selection=plan.selection, shard=plan.shard)
            schemas[plan.lake_name] = published_schema(table, source.arrow_schema(table))
    except CdcError as error:
        _log.info("Could not look for columns that readers misread: %s", error)
        return
    for warning in reader_warnings(lake.uri, format, schemas):
        _log.warning("%s", warning)


def _leftover(scratch: Storage, name: str, horizon: datetime) -> UnfinishedFiles | None:
    remaining_folders = {folder.rpartition("/")[2] for folder in scratch.folders(name)}
    folder = scratch.folder(name)
    if not remaining_folders.intersection(WORK_FOLDERS):
        return None
    try:
        run = Run.load(folder)
        began = datetime.fromisoformat(run.manifest.created_at)
    except (ManifestError, ValueError):
        # The folder has no readable manifest, so its run and age are unknown.
        return None
    # Do not use the time in the run's name. This time is the scheduled time, and a backfill run that is scheduled for
    # last year may have begun just now.
    if is_published(run) or began.astimezone(UTC) > horizon:
        return None
    placed: list[str] = []
    if run.committed:
        # Files of a run are moved to the lake only after its commit.
        sink = sink_of(run)
        placed = sink.unread(run.run_id, [entry.table.copy_name for entry in run.manifest.tables])
    return UnfinishedFiles(run.run_id, run.manifest.created_at, (folder.uri, *placed))


def sink_of(run: Run) -> Sink:
    """Return the sink with which a run publishes. For Iceberg tables, the sink uses the catalog of the run's catalog
    connection."""
    manifest = run.manifest
    return open_sink(lake_settings(manifest.options.lake, manifest.source_conn_id), Storage(manifest.lake))


def _listed(tables: Iterable[TableName]) -> str:
    return ", ".join(map(str, tables))
