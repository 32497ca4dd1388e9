"""The copies that a run publishes: their tables, files and digests."""

from __future__ import annotations

from airflow_provider_cdc.core.parquet.writer import total_of
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, copies_of
from airflow_provider_cdc.core.tables.table import TableName


def published_copies(manifest: Manifest, decision: Decision) -> list[CopyTables]:
    """Return the copies that the commit ``decision`` publishes."""
    return copies_of(entry for entry in manifest.tables if str(entry.table.name) in decision.files)


def files_of_copy(run: Run, decision: Decision, name: TableName) -> tuple[StagedFile, ...]:
    """Return all files of one copy of a run. Their names do not contain a folder."""
    entries = [entry for entry in run.manifest.tables if entry.table.copy_name == name]
    files = [file for entry in entries for file in decision.files_of(str(entry.table.name))]
    return tuple(sorted(files, key=lambda file: file.name))


def digests_of_copies(manifest: Manifest, decision: Decision) -> dict[str, str]:
    """Return the digest of each copy's rows (`Digest.hex`), by the copy's table name. Copies whose digest is not known
    are left out."""
    totals = {
        str(copy.name): total_of(file for entry in copy.tables for file in decision.files_of(str(entry.table.name)))
        for copy in published_copies(manifest, decision)
    }
    return {name: total.hex for name, total in totals.items() if total is not None}
