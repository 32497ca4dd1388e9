"""Unions: the publication of merged tables whose shards are in several sources.

A run copies the shards of one source into a lake of its own: a folder in the target (`member_lake`). A union unites the
files of such runs, its *members*, in the target. It has one commit, which names the members and the digests of their
commits. Only one try can create the commit, and it never changes. So a union has the files that were compared with each
other, or it does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_cdc.core.positions.as_of import parse
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import positions_of
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri, safe_name
from airflow_provider_cdc.core.tables.published import differences
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection, selection_of
from airflow_provider_cdc.core.tables.table import CopyName, Shard, TableName
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable

UNIONS, SOURCES = "_merged", "_sources"
"""Folders in the target: the records of unions, and the lakes of their members. Readers of the lake ignore them."""
REQUEST, RESULT, _COMMIT = "request.json", "result.json", "commit.json"
VANISHED_HINT = (
    "restore the source or the shard. If it is gone for good, name it in `Merge.vanished_shards`: the next copy then "
    "lacks "
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


# Compares the shards of several sources: whether they fit into one merged table.


@dataclass(frozen=True)
class PartOfMerged:
    """What the shards of one source share: their form, and the part of the tables that is copied."""

    shard: Shard
    selection: Selection = WHOLE


def unlike_sources(parts: Mapping[str, Mapping[str, PartOfMerged]]) -> dict[str, list[str]]:
    """Return, by the name of the merged table, why the shards of the sources do not fit into one table.

    :param parts: by source, and by the name of the merged table. All sources have the same options.
    """
    names = dict.fromkeys(name for of_source in parts.values() for name in of_source)
    found = {name: list(_unlike({source: own[name] for source, own in parts.items() if name in own})) for name in names}
    return {name: problems for name, problems in found.items() if problems}


def unfit_sources(sources: Mapping[str, Mapping[str, str]]) -> tuple[str, str]:
    """Return why tables of these sources cannot be merged, and what to do. Empty: they can.

    :param sources: the results of `core.positions.facts.source_of`, by the connections.
    """
    kinds = {name: source.get("kind", "") for name, source in sources.items()}
    if len({*kinds.values()}) > 1:
        told = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        return f"the sources are of different kinds ({told})", "merge sources of one kind only"
    names: dict[tuple[str, str], str] = {}
    for name, source in sources.items():
        server = source.get("server", ""), source.get("database", "")
        other = names.setdefault(server, name)
        if server[0] and other != name:
            what = f"the connections {other} and {name} lead to one server, so its rows would be there twice"
            return what, "name each server once"
    return "", ""


def unfit_as_of(requested: str) -> tuple[str, str]:
    """Return why several sources cannot be copied as of ``requested`` (option ``as_of``), and what to do. Empty: they
    can.

    :raises PositionError: the text is not a value of ``as_of``.
    """
    if not isinstance(parse(requested), Position):
        return "", ""
    return f"{requested} is a position, and positions of several sources differ", "give a time, or leave out `as_of`"


def _unlike(parts: Mapping[str, PartOfMerged]) -> Iterable[str]:
    (first, wanted), *others = parts.items()
    for source, part in others:
        found = differences(part.shard.columns, part.shard.key, wanted.shard)
        if not found and part.shard.columns != wanted.shard.columns:
            found = [_differs(part.shard, wanted.shard)]
        if bool(part.shard.origin) != bool(wanted.shard.origin):
            found.append("only one of them has the origin columns")
        if part.shard.origin_in_key != wanted.shard.origin_in_key:
            found.append("only one of them has the origin in the key")
        if part.selection != wanted.selection:
            found.append(f"its copied part is {part.selection}, not {wanted.selection}")
        yield from (f"{source}: {what} (compared with {first})" for what in found)


def _differs(own: Shard, wanted: Shard) -> str:
    names = [column.name for column in wanted.columns]
    if [column.name for column in own.columns] != names:
        return f"its columns are in another order than {', '.join(names)}: set `Merge.column_order` = `name`"
    columns = [one.name for one, other in zip(own.columns, wanted.columns, strict=True) if one != other]
    return f"its columns {', '.join(columns)} may be null in one of them only"
