"""What preflight looks for in the lake: names that collide there, another source's copies, what failed runs left."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.run.run import WORK_FOLDERS, Run, is_published, run_id_in
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.names import folder_name
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import CdcError, ManifestError, PreflightError, Problem
from airflow_provider_cdc.sinks.registry import open_sink

OLD = timedelta(days=7)
"""A run that began earlier and is not published is taken to be over."""

LOOKED_AT = 100
SHOWN = 10
_READERS = 8

_log = logging.getLogger(__name__)


def check_names(target: Storage, tables: Sequence[TableName]) -> None:
    """Make sure that each of ``tables`` has a folder of its own in this store.

    :raises PreflightError: the store ignores case, and would make one folder of two tables.
    """
    by_name: dict[str, list[TableName]] = {}
    for table in tables:
        by_name.setdefault(folder_name(table).lower(), []).append(table)
    alike = [same for same in by_name.values() if len(same) > 1]
    if not target.ignores_case():
        for same in alike:
            _log.warning(
                "%s differ only in case. This store tells them apart; a catalog or a disk that ignores case would not.",
                _listed(same),
            )
        return
    problems = [
        Problem(
            _listed(same),
            "their names differ only in case, which this store ignores: they would share one folder",
            "copy them into different targets, in runs of their own, or choose a store that heeds case",
        )
        for same in alike
    ]
    there = {name.lower(): name for name in target.folders()}
    problems += [
        Problem(
            str(tables[0]),
            f"the store ignores case, and has the folder {there[name]} already: another table's",
            "choose another target for one of them",
        )
        for name, tables in by_name.items()
        if len(tables) == 1 and there.get(name, folder_name(tables[0])) != folder_name(tables[0])
    ]
    if problems:
        raise PreflightError(problems)


def check_not_made_before(run: Storage, lake: Storage, tables: Sequence[TableName]) -> None:
    """Make sure that a run which has no manifest in ``run``, its folder, has no copies in ``lake`` either: it would
    read everything for new ones, and could not put them where others are.

    :raises ManifestError: it has some. Its records were removed, or lie in another scratch.
    """
    sink = open_sink(LAKE_FORMAT, lake)

    def files(table: TableName) -> list[str]:
        folder = sink.copy_folder(run_id_in(run), table)
        return [folder.uri] if folder.files() else []

    with ThreadPoolExecutor(_READERS) as readers:
        existing_files = [uri for uris in readers.map(files, tables) for uri in uris]
    # In this order, for a concurrent try may begin the run, and come to its end.
    if existing_files and not Run.exists(run):
        raise ManifestError(
            f"this run has published copies, such as {existing_files[0]}, and has no manifest any more: it was "
            "removed, or lies in another scratch",
            where=run.uri,
            hint="trigger a new run; or name the scratch that this one began with, and clear the task",
        )


def check_not_of_a_deleted_dag_run(run: Run, options: StepOptions) -> None:
    """Make sure that ``run``, which a DAG run's first try finds begun, is not published: that DAG run was deleted, and
    one with the same name and date was made. It would end well and copy nothing, unless what it is to copy is the same.

    :param options: of the DAG run that is there now.
    :raises ManifestError: it is published, and was not asked for the same position of the past.
    """
    manifest = run.manifest
    if is_published(run) and not (options.as_of and options.as_of == manifest.options.as_of):
        raise ManifestError(
            f"this DAG run was made before, on {manifest.created_at}, and its copies are published: this one would "
            "copy nothing",
            where=run.folder.uri,
            hint="trigger one with another run id and date",
        )


@dataclass(frozen=True)
class Leftover:
    """A run that began long ago and was not published. Nobody reads what is in its ``folders`` (URIs)."""

    run_id: str
    began: str
    folders: tuple[str, ...]


def find_leftovers(scratch: Storage, now: datetime | None = None) -> list[Leftover]:
    """Runs that are over and left files: of those in ``scratch``, the latest ones that are old enough."""
    horizon = (now or datetime.now(UTC)) - OLD
    names = [name for name in scratch.folders() if name < f"{horizon:%Y%m%dT%H%M%SZ}"]
    with ThreadPoolExecutor(_READERS) as readers:
        leftovers = list(readers.map(lambda name: _leftover(scratch, name, horizon), names[-LOOKED_AT:]))
    return [leftover for leftover in leftovers if leftover is not None]


def tell_leftovers(scratch: Storage) -> None:
    """Log what failed runs left, and how it is removed. Not being able to is no failure."""
    try:
        leftovers = find_leftovers(scratch)
    except (CdcError, OSError) as error:
        _log.info("What failed runs may have left in %s could not be looked for: %s", scratch, error)
        return
    if not leftovers:
        return
    folders = [folder for leftover in leftovers[:SHOWN] for folder in leftover.folders]
    _log.warning(
        "Never published, though begun more than %s ago: %s, whose files are read by nobody. "
        "If you will not clear those tasks any more, remove these folders%s:\n%s",
        counted(OLD.days, "day"),
        counted(len(leftovers), "run"),
        f" (the first {SHOWN} runs)" if len(leftovers) > SHOWN else "",
        "\n".join(f"  {folder}" for folder in folders),
    )


def _leftover(scratch: Storage, name: str, horizon: datetime) -> Leftover | None:
    remaining_folders = {folder.rpartition("/")[2] for folder in scratch.folders(name)}
    folder = scratch.folder(name)
    if not remaining_folders.intersection(WORK_FOLDERS):
        return None
    try:
        run = Run.load(folder)
        began = datetime.fromisoformat(run.manifest.created_at)
    except (ManifestError, ValueError):
        # Whose it is, and since when, is not known.
        return None
    # The run's name says when it was scheduled: a backfill of last year may have begun just now.
    if is_published(run) or began.astimezone(UTC) > horizon:
        return None
    placed: list[str] = []
    if run.committed:
        # What is to be published is decided before the first file of it is.
        sink = open_sink(run.manifest.lake_format, Storage(run.manifest.lake))
        placed = sink.unread(run.run_id, [entry.table.copy_name for entry in run.manifest.tables])
    return Leftover(run.run_id, run.manifest.created_at, (folder.uri, *placed))


def _listed(tables: Iterable[TableName]) -> str:
    return ", ".join(map(str, tables))
