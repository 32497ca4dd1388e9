"""Unions: the publication of merged tables whose shards are in several sources.

A run copies the shards of one source into a lake of its own: a folder in the target (`member_lake`). A union unites the
files of such runs, its *members*, in the target. It has one commit, which names the members and the digests of their
commits. Only one try can create the commit, and it never changes. So a union has the files that were compared with each
other, or it does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.certificate.totals import total_of
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, copies_of, positions_of
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import Column, CopyName, MergedColumn, Shard, Table, TableName, safe_name
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable

UNIONS, SOURCES = "_merged", "_sources"
"""Folders in the target: the records of unions, and the lakes of their members. Readers of the lake ignore them."""
REQUEST, RESULT, _COMMIT = "request.json", "result.json", "commit.json"
VANISHED_HINT = (
    "restore the source or the shard. If it is gone for good, name it in `vanished_shards`: the next copy then lacks "
    "its rows"
)


@dataclass(frozen=True)
class MemberAsked:
    """A run to unite: the connection to its source, and the URI of its folder."""

    source_conn_id: str
    run_uri: str


@dataclass(frozen=True)
class UnionRequest:
    """What a union is asked to do. ``vanished`` names sources, or shards (`shard_name`), that may be missing. ``keep``
    is the number of copies to keep; 0: all of them."""

    id: str
    target: str
    members: tuple[MemberAsked, ...]
    vanished: tuple[str, ...] = ()
    keep: int = 0


@dataclass(frozen=True)
class Member:
    """A run whose files are united. ``manifest`` is the digest of its manifest, and ``commit`` the name of its commit
    record, which has a digest. ``position`` is its object in the vector (`core.shards.copy_tables`). ``fixed`` says
    whether its position is the one that it first recorded at its beginning."""

    source_conn_id: str
    run_uri: str
    run_id: str
    manifest: str
    commit: str
    position: dict[str, Any]
    fixed: bool = True

    @property
    def asked(self) -> MemberAsked:
        return MemberAsked(self.source_conn_id, self.run_uri)


@dataclass(frozen=True)
class UnionCopy:
    """The copy of one merged table: the files of each shard, by the shard's name (`shard_name`). The names of the files
    are relative to the target. ``positions`` is the vector."""

    files: dict[str, tuple[StagedFile, ...]]
    positions: tuple[dict[str, Any], ...]
    certificate: dict[str, Any]
    where: str = ""
    columns: tuple[str, ...] = ()

    @property
    def all_files(self) -> tuple[StagedFile, ...]:
        return tuple(file for files in self.files.values() for file in files)

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each shard."""
        return {shard: sum(file.live_rows for file in files) for shard, files in self.files.items()}

    def name(self, table: str) -> TableName:
        """Return the name of the copies of the merged table ``table``."""
        return CopyName.of(TableName.parse(table), selection_of(self.where, self.columns))


@dataclass(frozen=True)
class Union:
    """The commit of a union: its members, and the copy of each merged table, by the table's name. ``skipped`` says why
    other merged tables have no copy. ``recorded_at`` is the latest time at which a member recorded its position."""

    id: str
    members: tuple[Member, ...]
    copies: dict[str, UnionCopy]
    recorded_at: str
    published_at: str
    skipped: dict[str, str] = field(default_factory=dict)
    as_of: str = ""
    missed_as_of: str = ""

    @property
    def positions(self) -> dict[str, str]:
        """The position of each source."""
        return positions_of([member.position for member in self.members])

    @property
    def in_order(self) -> bool:
        """Whether the sources' positions were recorded one after the other, in the order of the list.

        The times are compared, too: the records of a run that was not published may be removed. If its task is cleared
        later, the run records another position, maybe after the sources that follow it.
        """
        times = [datetime.fromisoformat(str(member.position["recorded_at"])) for member in self.members]
        return all(member.fixed for member in self.members) and times == sorted(times)


@dataclass(frozen=True)
class UnionResult:
    """The result of a union, by the table's name, as the XComs of its task."""

    published: dict[str, str]
    latest: dict[str, bool]
    rows: dict[str, int]
    shards: dict[str, dict[str, int]]
    positions: dict[str, str]
    in_order: bool
    skipped: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    seconds: float = 0.0


def member_place(source_conn_id: str) -> str:
    """Return the place of the lake of a member, relative to the target."""
    return f"{SOURCES}/{safe_name(source_conn_id)}"


def member_lake(target: str, source_conn_id: str) -> str:
    """Return the URI of the lake of a member.

    :param target: the URI of the target of the union.
    """
    return str(LakeUri.parse(target).joined(*member_place(source_conn_id).split("/")))


def shard_name(source_conn_id: str, table: TableName | str) -> str:
    """Return the name of a shard in a union."""
    return f"{source_conn_id}:{table}"


def union_folder(target: Storage, union_id: str) -> Storage:
    """Return the folder with the records of a union."""
    return target.folder(UNIONS, union_id)


def read_commit(folder: Storage) -> Union | None:
    """Return the commit of a union; None: it has none.

    :raises ManifestError: the record is damaged, or is of another union.
    """
    try:
        data = folder.read_json(_COMMIT)
    except FileNotFoundError:
        return None
    union = records.decode(Union, data, folder.uri_of(_COMMIT))
    if union.id != folder.uri.rpartition("/")[2]:
        raise ManifestError("the commit is of another union", where=folder.uri_of(_COMMIT), hint=records.HINT)
    return union


def record_commit(folder: Storage, union: Union) -> Union:
    """Record the commit of a union, unless a commit is already recorded. Return the recorded commit.

    :raises CommitUnknown: it is unknown whether the commit was recorded, because the store failed.
    """
    try:
        folder.create_json(_COMMIT, records.encode(union))
        recorded = read_commit(folder)
    except StorageUnavailable as error:
        raise CommitUnknown(
            f"cannot tell whether the commit was stored: {error.message}",
            where=folder.uri,
            hint="run the task again: it checks whether the commit was stored, and continues from there",
        ) from error
    assert recorded is not None
    return recorded


def check_same_members(
    union: Union, asked: Sequence[MemberAsked], manifests: Mapping[str, str], folder: Storage
) -> None:
    """Check that a commit unites the runs that a task was asked to unite.

    :param manifests: the digests of the manifests of these runs, by the source, as far as they are known. A run that
        began again has another one.
    :raises ManifestError: it unites other runs.
    """
    begun = {member.source_conn_id: member.manifest for member in union.members}
    if [member.asked for member in union.members] != list(asked) or {**begun, **manifests} != begun:
        names = ", ".join(f"{member.source_conn_id}: {member.run_id}" for member in union.members)
        raise ManifestError(
            f"this union already has a commit, which unites other runs ({names})",
            where=folder.uri,
            hint="trigger a new run",
        )


def missing_shards(before: Sequence[Mapping[str, Any]], now: Sequence[str], vanished: Sequence[str]) -> list[str]:
    """Return the shards of an earlier copy that a new copy lacks, although no user confirmed it.

    :param before: the shards in the record of the earlier copy.
    :param vanished: `Request.vanished`.
    """
    names = {str(shard["shard"]) for shard in before} - {*now} - {*vanished}
    return sorted(name for name in names if name.partition(":")[0] not in vanished)


# The columns of merged tables: the schema that all shards share, and the rows of one shard in this schema.


def merged_schema(shard: Shard, schema: pa.Schema) -> pa.Schema:
    """Return the schema of the copies of a merged table.

    :param schema: the schema of the shard's own rows.
    """
    own = [schema.field(column.name).with_nullable(column.nullable) for column in shard.columns]
    return pa.schema([*own, *(pa.field(name, pa.string(), nullable=False) for name in shard.origin_columns)])


def merged_rows(shard: Shard, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a shard in the schema of the merged table, with their origin."""
    own = [rows.column(column.name) for column in shard.columns]
    origin = [pa.repeat(pa.scalar(shard.origin[name], pa.string()), rows.num_rows) for name in shard.origin_columns]
    return pa.RecordBatch.from_arrays([*own, *origin], schema=merged_schema(shard, rows.schema))


def columns_of(table: Table, schema: pa.Schema) -> tuple[MergedColumn, ...]:
    """Return the published columns of a table, as columns of a merged table.

    :param schema: the result of `Source.arrow_schema` for the table.
    """
    columns = (table.column(name) for name in table.published_columns)
    return tuple(_column(column, schema.field(column.name), in_key=column.name in table.key) for column in columns)


def _column(column: Column, published: pa.Field, *, in_key: bool) -> MergedColumn:
    collation = str(column.details.get("collation", "")) if in_key else ""
    return MergedColumn(column.name, _type(column), str(published.type), published.nullable, collation)


def _type(column: Column) -> str:
    """Return the declared type of a column, with the facts that its text leaves out."""
    generated, labels = column.details.get("generated"), column.details.get("labels")
    more = f" generated ({generated})" if generated else ""
    # MySQL's text of an ENUM does not show labels in some character sets.
    hidden = f" {labels}" if labels and column.type.lower().startswith(("enum", "set")) else ""
    return f"{column.type}{more}{hidden}"


def shard_of(
    merged: TableName, tables: Sequence[Table], columns: Sequence[Sequence[MergedColumn]], *, by_name: bool
) -> Shard:
    """Return what the shards of a merged table share: the columns and the key of the first shard.

    :param columns: the result of `columns_of` for each of ``tables``.
    :param by_name: whether the columns are in the order of their names, after those of the key.
    """
    first = tables[0]
    # Columns outside of the key may be null, whatever the shards declare, so that shards can join and become nullable.
    required = {*first.key} - {column.name for own in columns for column in own if column.nullable}
    ordered = list(columns[0])
    if by_name:
        ordered.sort(key=lambda column: (column.name not in first.key, column.name))
        ordered[: len(first.key)] = sorted(ordered[: len(first.key)], key=lambda column: first.key.index(column.name))
    return Shard(merged, tuple(replace(column, nullable=column.name not in required) for column in ordered), first.key)


def differences(columns: Sequence[MergedColumn], key: Sequence[str], other: Shard) -> list[str]:
    """Return how the columns and the key of a table differ from those of a merged table, in a way that is not
    reconciled. The order of the columns may differ. A column may be nullable in the merged table alone.
    """
    wanted: Mapping[str, MergedColumn] = {column.name: column for column in other.columns}
    own = {column.name: column for column in columns}
    found = [f"it has no column {name}" for name in wanted if name not in own]
    found += [f"its column {name} is not in the merged table" for name in own if name not in wanted]
    for name, column in own.items():
        if name not in wanted:
            continue
        merged = wanted[name]
        if (column.type, column.published) != (merged.type, merged.published):
            shown = f" ({column.published}, not {merged.published})" if column.type == merged.type else ""
            found.append(f"its column {name} has the type {column.type}, not {merged.type}{shown}")
        elif column.collation != merged.collation:
            found.append(f"its key column {name} has the collation {column.collation}, not {merged.collation}")
        elif column.nullable and not merged.nullable:
            found.append(f"its column {name} is nullable now")
    if tuple(key) != other.key:
        found.append(f"its key is ({', '.join(key)}), not ({', '.join(other.key)})")
    return found


# The copies that a run publishes: their tables, files and digests.


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
