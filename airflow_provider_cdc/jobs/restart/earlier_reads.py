"""Reads of earlier manifests of a run that still count."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.table_files import TableFiles, read_record
from airflow_provider_cdc.sources.api.window import UpperBound


def undone(step: Step, bound: UpperBound | None = None) -> dict[str, str]:
    """Return the tables whose earlier reads a restart of the server may have undone, each with the reason.

    :param bound: the bound of the reads under the present manifest. None: nothing was read under this manifest.
    """
    if not step.manifest.earlier_reads:
        return {}
    bound = bound or persist("snapshot: check the earlier reads", step.source.bound_reads)
    kept = {key for key, reads in step.manifest.earlier_reads.items() if reads.incarnation == bound.incarnation}
    why = "the server restarted after the table was read"
    return {str(entry.table.name): why for entry in step.tables if entry.read_in and entry.read_in not in kept}


def files_read_earlier(step: Step) -> dict[str, TableFiles]:
    """Return the files of the tables that were read under an earlier manifest."""
    files: dict[str, TableFiles] = {}
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
