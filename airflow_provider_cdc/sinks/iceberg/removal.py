"""Removes the snapshot of an older copy, and the files that only this snapshot names.

The removal has three steps. Because of their order, a crash at any point leaves every other copy complete:

1. `withdraw` removes the rows that name the snapshot from the table of cuts, so that no new reader uses the snapshot.
2. A grace period passes, because readers may still use a cut that names the snapshot. Then the list of the files that
   only this snapshot names is recorded, and one commit removes the tag and the snapshot. The commit requires that the
   head and the tag have not changed.
3. The recorded files are deleted. Files that a snapshot of the table names at this time are not deleted.

PyIceberg's own snapshot expiry is not used: it deletes no files, and rejects snapshots with tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import PublishIncomplete
from airflow_provider_cdc.sinks.iceberg.catalog import name_of, send
from airflow_provider_cdc.sinks.iceberg.commit import tag_of
from airflow_provider_cdc.sinks.iceberg.cut_table import remove_rows
from airflow_provider_cdc.sinks.iceberg.producer import NamedFiles, delete_unnamed

_ROUNDS = 10


@dataclass(frozen=True)
class _Doomed:
    """The files to delete after a snapshot is removed, because only that snapshot names them. Names are relative to the
    table's folder."""

    table_uuid: str
    files: tuple[str, ...]


def withdraw(catalog: Catalog, namespace: str, copies: Sequence[tuple[Table, str]]) -> None:
    """Remove snapshots from the cuts, in one commit. Each copy is a table and the id of the run that made the
    snapshot."""
    snapshots = {
        (name_of(table.name()), snapshot.snapshot_id)
        for table, run_id in copies
        if (snapshot := table.metadata.snapshot_by_name(tag_of(run_id))) is not None
    }
    if snapshots:
        remove_rows(catalog, namespace, snapshots)


def remove_snapshot(catalog: Catalog, table: Table, run_id: str, lake: Storage, record: str) -> None:
    """Remove the snapshot that a run's tag names, and the files that only this snapshot names.

    :param record: the name of the list of files in ``lake``. The list is deleted after the files that it names.
    :raises PublishIncomplete: other writers keep changing the table.
    """
    named = NamedFiles()
    for _ in range(_ROUNDS):
        snapshot = table.metadata.snapshot_by_name(tag_of(run_id))
        if snapshot is None:
            break
        updates, requirements, expires = _removal(table, run_id, snapshot)
        if expires:
            others = [other for other in table.metadata.snapshots if other.snapshot_id != snapshot.snapshot_id]
            try:
                doomed = named.of(table, [snapshot]) - named.of(table, others)
            except FileNotFoundError:
                # The catalog was set back, and this or another snapshot has lost files. Delete nothing:
                # `CleanOperator` finds the files that no snapshot names.
                doomed = set()
            records.write(lake, record, _Doomed(str(table.metadata.table_uuid), tuple(sorted(doomed))))
        with suppress(CommitFailedException):
            send(catalog, table, requirements, updates)
        table = catalog.load_table(table.name())
    else:
        raise PublishIncomplete(
            "other writers keep changing the table", where=name_of(table.name()), hint="leave it to the next run"
        )
    finish_removal(table, lake, record, named)


def finish_removal(table: Table | None, lake: Storage, record: str, named: NamedFiles | None = None) -> None:
    """Delete the files that a removal recorded, unless the removal has already deleted them.

    :param table: the table in its present state, or None if the table was dropped.
    """
    if not lake.exists(record):
        return
    doomed = records.read(_Doomed, lake, record)
    # A table that was created again may use the same folder. None of its files belong to the removed copy.
    if table is not None and str(table.metadata.table_uuid) == doomed.table_uuid:
        delete_unnamed(table, doomed.files, named)
    lake.delete_file(record)


def _removal(
    table: Table, run_id: str, snapshot: Snapshot
) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...], bool]:
    """Return the updates and requirements of the commit, and whether it removes the snapshot. The snapshot stays if
    another branch or tag refers to it."""
    tag = tag_of(run_id)
    heads = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": tag, "snapshot-id": snapshot.snapshot_id}),
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": heads.get("main")}),
    )
    updates: tuple[TableUpdate, ...] = (RemoveSnapshotRefUpdate.model_validate({"ref-name": tag}),)
    expires = not any(head == snapshot.snapshot_id for name, head in heads.items() if name != tag)
    if expires:
        updates += (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot.snapshot_id]}),)
    return updates, requirements, expires
