"""Removes the snapshot of an older copy, and the files that no other snapshot names.

Three steps, in this order, so that a crash at any point leaves every remaining copy whole:

1. The rows that name the snapshot leave the table of cuts (`withdraw`). No new reader is led to it.
2. After a grace time, for readers hold on to a cut while they read: the files that only this snapshot names are written
   down, and one commit removes its tag and the snapshot, requiring the head and the tag.
3. The files that were written down are deleted, unless a snapshot names one of them now.

PyIceberg's own expiry deletes no file, and refuses snapshots with tags.
"""

from __future__ import annotations

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
from airflow_provider_cdc.sinks.iceberg.cuts import remove_rows
from airflow_provider_cdc.sinks.iceberg.named_files import NamedFiles, delete_unnamed

_ROUNDS = 10


@dataclass(frozen=True)
class _Doomed:
    """Files that only a snapshot named that is about to be removed: their names in the table's folder."""

    table_uuid: str
    files: tuple[str, ...]


def withdraw(catalog: Catalog, namespace: str, table: Table, run_id: str) -> None:
    """Remove a run's snapshot of one table from the cuts."""
    snapshot = table.metadata.snapshot_by_name(tag_of(run_id))
    if snapshot is not None:
        remove_rows(catalog, namespace, name_of(table.name()), snapshot.snapshot_id)


def remove_snapshot(catalog: Catalog, table: Table, run_id: str, lake: Storage, record: str) -> None:
    """Remove the snapshot that a run's tag names, with its files.

    :param record: the name in ``lake`` of the list of files, which is gone when all of them are.
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
            doomed = named.of(table, [snapshot]) - named.of(table, others)
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
    """Delete the files that a removal has written down, if it has not done so.

    :param table: as it is now; None: it was dropped.
    """
    if not lake.exists(record):
        return
    doomed = records.read(_Doomed, lake, record)
    # A table that was made anew may lie in the same folder: nothing in it is of the removed copy.
    if table is not None and str(table.metadata.table_uuid) == doomed.table_uuid:
        delete_unnamed(table, doomed.files, named)
    lake.delete_file(record)


def _removal(
    table: Table, run_id: str, snapshot: Snapshot
) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...], bool]:
    """What a catalog commits, and whether the snapshot goes: another program's branch or tag keeps it."""
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
