"""Reads of earlier manifests of a run that still count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import EarlierReads, Manifest, RunTable
from airflow_provider_cdc.core.run.spool_chain import reaching
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.table_files import ReadFiles, read_record
from airflow_provider_cdc.jobs.spool.kept_pieces import acknowledge, last_piece_of
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import UpperBound


def undone(step: Step, bound: UpperBound | None = None) -> dict[str, str]:
    """Return the tables whose earlier reads a restart of the server may have undone, each with the reason.

    :param bound: the bound of the reads under the present manifest. None: nothing was read under this manifest.
    """
    if not step.manifest.earlier_reads:
        return {}
    bound = bound or retry("snapshot: check the earlier reads", step.source.bound_reads)
    kept = {key for key, reads in step.manifest.earlier_reads.items() if reads.incarnation == bound.incarnation}
    why = "the server restarted after the table was read"
    return {str(entry.table.name): why for entry in step.tables if entry.read_in and entry.read_in not in kept}


def files_read_earlier(step: Step) -> dict[str, ReadFiles]:
    """Return the files of the tables that were read under an earlier manifest."""
    files: dict[str, ReadFiles] = {}
    for key, reads in step.manifest.earlier_reads.items():
        recorded = read_record(step.run, reads.record)
        files |= {name: recorded[name] for name in _names(step, key)}
    return files


def nulled_earlier(step: Step) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the number of values of each column that the earlier reads turned into null, by table."""
    for key, reads in step.manifest.earlier_reads.items():
        yield from ((name, reads.nulled[name]) for name in _names(step, key) if name in reads.nulled)


def _names(step: Step, key: str) -> list[str]:
    return [str(entry.table.name) for entry in step.tables if entry.read_in == key]


# Groups tables by the manifest under which their reads began.
#
# Each manifest has its own position, and on PostgreSQL its own slot and publication. The log of a table comes from
# those of the manifest under which the table was read. So the checks of a table need the source as of that manifest,
# too.


@dataclass(frozen=True)
class ReadsOfManifest:
    """The tables of a step whose reads began under one manifest, and the ``source`` as of this manifest. ``check``
    raises an error if the server, the slot or the publication of this manifest was changed.

    ``key`` is the key of `Manifest.earlier_reads`. It is empty for the present manifest."""

    key: str
    source: Source
    entries: tuple[RunTable, ...]
    identity: Facts
    position: Position

    def check(self) -> None:
        """Check that the log has been complete since the reads began.

        :raises LogGone: the source no longer has the log.
        :raises ExactnessError: the source or its settings were changed, so the log may lack changes.
        """
        check = partial(self.source.check_identity, self.identity, self.position)
        retry("check the source since the earlier reads", check)


def by_manifest(step: Step, entries: Iterable[RunTable]) -> Iterator[ReadsOfManifest]:
    """Yield ``entries`` in groups, one for each manifest. Tables that are read under the present manifest, or that are
    rolled forward from a copy, belong to the present manifest."""
    manifest, groups = step.manifest, dict[str, list[RunTable]]()
    for entry in entries:
        groups.setdefault(entry.read_in if entry.read_in in manifest.earlier_reads else "", []).append(entry)
    for key, group in groups.items():
        if not key:
            identity, position, source = step.run.expected_identity(), manifest.initial, step.source
        else:
            reads = manifest.earlier_reads[key]
            identity, position = reads.identity, manifest.begin_of(reads)
            last = last_piece_of(step, key)
            if last is not None:
                identity = reaching(identity, last)
            source = step.source.of_run(identity, position)
            if last is None:
                # The facts about the tables were renewed when the run moved.
                source = source.with_facts_of(manifest.identity)
        yield ReadsOfManifest(key, source, tuple(group), identity, position)


# Drops the slots and publications of earlier manifests of the run.
#
# On PostgreSQL, each manifest has its own slot and publication. After a move, the slot of the old manifest is advanced
# to the new position, or dropped if no read of this manifest counts. Otherwise the server would keep log for it until
# the end of the run.


def discard_unused(step: Step, made: Sequence[Manifest | EarlierReads], present: Manifest) -> None:
    """Drop the slots and publications that were ``made`` and that the ``present`` manifest does not use."""
    used = [present.identity, *(reads.identity for reads in present.earlier_reads.values())]
    for one in made:
        if one.identity not in used:
            with suppress(CdcError):
                step.source.discard(one.identity)


def finish_move(step: Step) -> None:
    """Drop what earlier manifests have left. The attempt that moved the run may have been killed before it did so."""
    if step.manifest.restarts:
        acknowledge(step, step.manifest)
        # If this fails, the end of the run drops them.
        with suppress(CdcError):
            discard_unused(step, step.run.state.earlier, step.manifest)
