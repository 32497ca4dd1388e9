"""Commits one table's copy to the catalog: one snapshot and its tag, even if answers of the catalog are lost.

Only ``CommitFailedException`` means that nothing was committed. After any other error (a lost response, a time-out, a
5xx answer), the commit may or may not have succeeded. So each try first looks for the run's tag, which is part of the
commit. If the tag does not exist, the updates are sent again. A catalog of this package reads only what is committed,
also after a commit of its own has failed (`sinks.iceberg.sql`). Each request requires that the table's head has not
changed since the request was made, and that the tag does not exist. So at most one of a run's requests can succeed.

An older run never replaces the head that a newer run committed. The record of the newest copy is a property of the
table (`tables.HEAD`), and changes in the same commit as the head. If an older run commits late, only its tag refers to
its snapshot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from airflow_provider_cdc.core.copies.head import (
    Copy,
    decode_copy,
    describe,
    encode_copy,
    is_newer,
    is_of_another,
    known_source,
)
from airflow_provider_cdc.core.parquet.writer import COMPRESSION
from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.errors import CdcError, ConfigurationError, FileDamaged, PublishIncomplete
from airflow_provider_cdc.sinks.iceberg.catalog import COMPLETE, Identifier, commit_unknown, load_table, name_of, send
from airflow_provider_cdc.sinks.iceberg.layout import (
    check_kept,
    check_partitioning,
    columns_update,
    order_back,
    order_updates,
    schema_back,
    stage_schema,
    without_lost_order,
)
from airflow_provider_cdc.sinks.iceberg.producer import replace_files
from airflow_provider_cdc.sinks.iceberg.table import (
    CODEC,
    HEAD,
    RUN_ID,
    check_version,
    names_before,
    recorded_columns,
    recorded_identifier,
    recorded_order,
    recorded_schema,
    recorded_uuid,
)

TAG = "cdc-"
COPY = "cdc.copy"
"""The property of a snapshot that contains the record of the copy."""

_ROUNDS = 10
_RESENDS = 3
_PAUSE_SECONDS = 0.5
_WHAT = "this copy"


@dataclass(frozen=True)
class TableCommit:
    """The copy of one table, with its files, as it will be committed.

    ``wanted`` has all data files of the copy by URI, each with its record. The record is None if the copy takes over
    the file from the snapshot of the run ``base``. ``deletes`` has the records of the position-delete files, by the URI
    of the data file. ``properties`` are further properties of the snapshot. If ``replaces_foreign`` is set, the copy
    replaces the rows that other programs changed. Otherwise, such rows stop the run. ``compression`` is the codec that
    the table then names to other writers.
    """

    copy: Copy
    place: Place
    wanted: Mapping[str, DataFile | None]
    base: str = ""
    deletes: Mapping[str, DataFile] = field(default_factory=dict)
    replaces_foreign: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    compression: str = COMPRESSION


@dataclass(frozen=True)
class CommittedTable:
    """A table's copy that was committed to the catalog."""

    identifier: Identifier
    uuid: str
    snapshot_id: int
    schema_id: int


def tag_of(run_id: str) -> str:
    """Return the name of the tag that marks a run's snapshots."""
    return f"{TAG}{run_id}"


def commit_table(catalog: Catalog, commit: TableCommit) -> CommittedTable:
    """Commit the copy of one table, unless it is already committed.

    :raises ConfigurationError: the table was replaced, or another writer changed its rows.
    :raises PublishIncomplete: other writers kept changing the table.
    :raises CommitUnknown: the catalog does not say whether it has committed.
    """
    identifier = recorded_identifier(commit.place)
    where = name_of(identifier)
    staged: _Staged | None = None
    unknown: list[Exception] = []
    for _ in range(_ROUNDS):
        try:
            table = _load(catalog, identifier, commit.place, where)
            if done := _committed(table.metadata, identifier, commit.copy.run_id, where):
                return done
            if staged is None or staged.metadata_location != table.metadata_location:
                # All earlier requests also require that the run has no tag, so at most one request can succeed.
                staged = _stage(table, commit, where)
        except CdcError:
            raise
        except Exception as error:
            if not unknown:
                raise
            raise commit_unknown(_WHAT, where, error) from unknown[-1]
        try:
            metadata = send(catalog, table, staged.requirements, staged.updates)
        except CommitFailedException:
            # Another writer committed first, or the catalog had already committed an earlier attempt of this request.
            # The next iteration of the loop looks for the run's tag.
            unknown = []
        except Exception as error:
            unknown.append(error)
            if len(unknown) > _RESENDS:
                break
            time.sleep(_PAUSE_SECONDS)
        else:
            if done := _committed(metadata, identifier, commit.copy.run_id, where):
                return done
    if unknown:
        raise commit_unknown(_WHAT, where, unknown[-1]) from unknown[-1]
    raise PublishIncomplete("other writers keep changing the table", where=where, hint=COMPLETE)


def has_snapshot(catalog: Catalog, identifier: Identifier, uuid: str, snapshot_id: int) -> bool:
    """Return whether the catalog has a table with this name and UUID, and the table has the snapshot."""
    table = load_table(catalog, identifier)
    return (
        table is not None
        and str(table.metadata.table_uuid) == uuid
        and table.metadata.snapshot_by_id(snapshot_id) is not None
    )


def _load(catalog: Catalog, identifier: Identifier, place: Place, where: str) -> Table:
    hint = "trigger a new run, which creates the table anew"
    table = load_table(catalog, identifier)
    if table is None:
        raise ConfigurationError("the table was dropped while the run was at work", where=where, hint=hint)
    if str(table.metadata.table_uuid) != recorded_uuid(place):
        raise ConfigurationError("the table was replaced while the run was at work", where=where, hint=hint)
    return table


def _committed(metadata: TableMetadata, identifier: Identifier, run_id: str, where: str) -> CommittedTable | None:
    """Return the committed copy of the run, or None if the run's tag does not exist.

    :raises FileDamaged: the run's tag names a snapshot that the run did not make.
    """
    snapshot = metadata.snapshot_by_name(tag_of(run_id))
    if snapshot is None:
        return None
    if property_of(snapshot, RUN_ID) != run_id:
        raise FileDamaged(
            f"the tag {tag_of(run_id)} names a snapshot of another run",
            where=where,
            hint="find out who moved the tag, and trigger a new run",
        )
    schema_id = snapshot.schema_id if snapshot.schema_id is not None else metadata.current_schema_id
    return CommittedTable(identifier, str(metadata.table_uuid), snapshot.snapshot_id, schema_id)


@dataclass(frozen=True)
class _Staged:
    """A prepared commit. It was prepared for the version of the table whose metadata file is ``metadata_location``."""

    metadata_location: str
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]


def _stage(table: Table, commit: TableCommit, where: str) -> _Staged:
    metadata, run_id = table.metadata, commit.copy.run_id
    head = head_of(table, where)
    check_same_source(head, commit.copy, where)
    check_version(table, where)
    check_partitioning(metadata, recorded_schema(commit.place), commit.place.partition, where)
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        _ref("main", metadata.current_snapshot_id),
    )
    if metadata.snapshots:
        # PyIceberg rejects this requirement if the table has no snapshots. A table without snapshots has no tags.
        requirements += (_ref(tag_of(run_id), None),)
    for snapshot in metadata.snapshots:
        if property_of(snapshot, RUN_ID) == run_id:
            # Another program removed the tag of the run's snapshot: set the tag again.
            return _Staged(table.metadata_location, (_tag(run_id, snapshot.snapshot_id),), requirements)
    takes_head = head is None or head.run_id == run_id or is_newer(commit.copy, head)
    if takes_head and not commit.replaces_foreign:
        check_foreign(table, where)
    wanted_schema = recorded_schema(commit.place)
    base = metadata.snapshot_by_name(tag_of(commit.base)) if commit.base else None
    copy = json.dumps(encode_copy(commit.copy))
    properties = {RUN_ID: run_id, COPY: copy, "cdc.position": commit.copy.position, **commit.properties}
    before = names_before(commit.place)
    if base is not None:
        check_kept(table, base, wanted_schema, before, where)
        properties["cdc.base_run_id"] = commit.base
        # This copy shares files with the base's snapshot. These files are not removed as long as the base's snapshot
        # has its tag.
        requirements += (_ref(tag_of(commit.base), base.snapshot_id),)
    transaction = Transaction(table)
    identities = recorded_columns(commit.place)
    transaction._stage(without_lost_order(metadata, wanted_schema))
    stage_schema(transaction, table, wanted_schema, identities, before, where)
    try:
        snapshot_id, updates, _ = replace_files(
            transaction,
            properties,
            commit.wanted,
            "main" if takes_head else None,
            [base] if base else [],
            manifests_of(run_id),
            commit.deletes,
        )
    except KeyError as error:
        raise FileDamaged(
            f"the snapshot of run {commit.base}, which this copy is made from, is gone",
            where=where,
            hint="it was expired by another program, or its tag was removed: trigger a new run",
        ) from error
    updates = (*transaction._updates, *updates, _tag(run_id, snapshot_id))
    if takes_head:
        named = SetPropertiesUpdate(updates={HEAD: copy, CODEC: commit.compression})
        updates += (named, *columns_update(table, identities))
        updates += order_updates(transaction.table_metadata, recorded_order(commit.place))
    else:
        updates += schema_back(transaction, table)
        updates += order_back(metadata, transaction.table_metadata)
    return _Staged(table.metadata_location, updates, (*requirements, *transaction._requirements))


def manifests_of(run_id: str) -> str:
    """Return the prefix of the names of a run's Iceberg manifests."""
    return f"cdc-{run_id}-"


def _tag(run_id: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": tag_of(run_id), "type": "tag", "snapshot-id": snapshot_id})


def _ref(name: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})


def head_of(table: Table, where: str) -> Copy | None:
    """Return the record of the newest copy that was committed to the table, or None if no copy was committed."""
    text = table.properties.get(HEAD)
    return None if text is None else decode_copy(json.loads(text), where)


def check_same_source(head: Copy | None, copy: Copy, where: str) -> None:
    """Check that the newest copy of a table and ``copy`` are not known to come from different sources.

    :raises ConfigurationError: the newest copy comes from another source.
    """
    if head is not None and is_of_another(head, copy):
        raise another_source(head, copy.source, where)


def another_source(copy: Copy, source: Mapping[str, str], where: str) -> ConfigurationError:
    """Return the error for a table that has a copy of a source other than ``source``."""
    return ConfigurationError(
        f"the table has copies of another source: {describe(known_source(copy))}; this run's is {describe(source)}",
        where=where,
        hint="give each source tables of its own: {source} in Iceberg.table_name stands for the id of the connection, "
        "as in "
        "{source}_{schema}.{table}",
    )


def check_foreign(table: Table, where: str) -> None:
    """Check that only runs of this package have changed rows of the table since the newest copy.

    :raises ConfigurationError: another writer has changed rows, or may have done so.
    """
    if what := foreign_change(table):
        raise ConfigurationError(
            what,
            where=where,
            hint="have it write to another table; then set the table back to the snapshot of the last run "
            "(rollback_to_snapshot), or choose On.foreign_commit = replace, and trigger a new run",
        )


def foreign_change(table: Table) -> str:
    """Describe how another writer changed rows of the table since the newest copy; empty: no other writer did.

    Compactions are ignored, because they change files but no rows. If the snapshot before a compaction has expired, it
    is looked up in earlier metadata files of the table.
    """
    snapshot = table.metadata.snapshot_by_name("main")
    history = _History(table)
    while snapshot is not None and not property_of(snapshot, RUN_ID):
        operation = snapshot.summary.operation if snapshot.summary is not None else None
        if operation != Operation.REPLACE:
            return f"another program changed rows of this table (snapshot {snapshot.snapshot_id})"
        parent = history.parent_of(snapshot)
        if parent is None:
            return (
                f"another program expired the snapshot before the compaction {snapshot.snapshot_id}, so it is unknown "
                "whether it changed rows of this table"
            )
        snapshot = parent
    return ""


class _History:
    """The snapshots of a table, including expired snapshots that earlier metadata files have."""

    def __init__(self, table: Table) -> None:
        self._io = table.io
        self._snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        self._earlier = [entry.metadata_file for entry in table.metadata.metadata_log]

    def parent_of(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the snapshot before ``snapshot``, or None if it is unknown."""
        while True:
            # Some programs clear the field if they expire the parent.
            parent = self._snapshots[snapshot.snapshot_id].parent_snapshot_id
            if parent is not None and parent in self._snapshots:
                return self._snapshots[parent]
            if not self._earlier:
                return None
            self._read_earlier(self._earlier.pop())

    def _read_earlier(self, location: str) -> None:
        try:
            metadata = FromInputFile.table_metadata(self._io.new_input(location))
        except FileNotFoundError:
            # Catalogs and other programs delete the oldest metadata files.
            self._earlier = []
            return
        for snapshot in metadata.snapshots:
            known = self._snapshots.get(snapshot.snapshot_id)
            if known is None or known.parent_snapshot_id is None:
                self._snapshots[snapshot.snapshot_id] = snapshot


def property_of(snapshot: Snapshot, name: str) -> str:
    """Return a property of a snapshot, or an empty text if the snapshot does not have the property."""
    summary = snapshot.summary
    return "" if summary is None else str(summary.additional_properties.get(name, ""))
