"""Finds everything that ended runs left behind for one target, and removes it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from airflow_provider_cdc.cleaning.findings import CleaningReport, KnownRuns, Leftover, Removal, Rules
from airflow_provider_cdc.cleaning.leftover_files import SinkOf, StrayFiles, Verifications, temporary_files
from airflow_provider_cdc.cleaning.run_folders import RunFolders
from airflow_provider_cdc.cleaning.server_objects import IsOfTarget, ServerObjects, leftovers_on_server
from airflow_provider_cdc.core.liveness import StateOf, no_airflow
from airflow_provider_cdc.core.storage.folder import Storage, clock_of
from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.sources.api.source import Source

DAYS = 7


def _nothing(line: str) -> None:
    pass


@dataclass(frozen=True)
class Cleaner:
    """Removes the leftovers of ended runs.

    :param lake: the target.
    :param scratch: the folder that holds the folders of its runs.
    :param source: the source of the runs; None: no slot is examined.
    :param source_conn_id: the connection of the runs.
    :param sink_of: opens the sink of a run.
    :param state_of: asks Airflow for the state of a DAG run.
    :param is_of_target: returns whether a slot without a run was created for this target.
    :param days: how long the files of failed DAG runs stay.
    """

    lake: Storage
    scratch: Storage
    source: Source | None
    source_conn_id: str
    sink_of: SinkOf
    state_of: StateOf = no_airflow
    is_of_target: IsOfTarget = lambda one: False
    days: int = DAYS

    def clean(self, *, dry_run: bool, say: Callable[[str], None] = _nothing) -> CleaningReport:
        """Remove what can be removed, or with ``dry_run`` only find it.

        An error about one leftover does not stop the others.

        :raises ConfigurationError: the folder of runs does not exist.
        """
        if not self.scratch.folders():
            raise ConfigurationError(
                "there are no folders of runs here",
                where=self.scratch.uri,
                hint="set `target` and `scratch` to the values that the runs have",
            )
        removed: list[Leftover] = []
        kept: list[Leftover] = []
        for found in self._found():
            if isinstance(found, Leftover):
                kept.append(found)
                continue
            leftover = found.leftover
            why = "" if dry_run else _attempt(found.remove)
            if why:
                kept.append(replace(leftover, why=why))
                continue
            removed.append(leftover)
            say(f"{'would remove' if dry_run else 'removed'} {leftover}")
        return CleaningReport(tuple(removed), tuple(kept), dry_run)

    def _found(self) -> Iterator[Removal | Leftover]:
        rules = Rules(
            self.lake.uri, self.source_conn_id, timedelta(days=self.days), self.state_of, clock_of(self.scratch)
        )
        first = KnownRuns(self.scratch, rules)
        first.read()
        own = {run_id: run for run_id, run in first.runs.items() if not first.foreign(run)}
        # First list files and slots, and then read the runs again. So the run of each of them is known, or is gone. A
        # run that starts afterwards creates other files and slots.
        strays = StrayFiles(own, self.sink_of)
        verifications = Verifications.listed(self.lake, rules)
        server = ServerObjects.listed(self.source, [*first.runs, *first.unreadable, *verifications.run_ids])
        known = KnownRuns(self.scratch, rules)
        known.read()
        folders = RunFolders(known, server, strays, self.sink_of, f"clean-{uuid.uuid4().hex[:8]}")
        apart = server.without(verifications.run_ids)
        on_server = [*leftovers_on_server(apart, known, self.is_of_target)]
        in_tables = [*strays.leftovers(known)]
        yield from folders.leftovers()
        yield from verifications.leftovers(server)
        yield from on_server
        yield from in_tables
        yield from temporary_files(self.lake, self.scratch, rules)


def _attempt(remove: Callable[[], str]) -> str:
    try:
        return remove()
    except (CdcError, OSError, pa.ArrowException) as error:
        return f"the removal failed: {error}"
