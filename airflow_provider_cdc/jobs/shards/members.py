"""Collects the runs that a union unites, and checks that they may be united."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.core.certificate import Certificate, Making, ShardPart, certificate_of_copy
from airflow_provider_cdc.core.parquet.writer import total_of
from airflow_provider_cdc.core.run.commit_record import Decision, decision_of
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.run.run import Run, is_published, run_id_in
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, merged_source, position_entry
from airflow_provider_cdc.core.shards.published import published_copies
from airflow_provider_cdc.core.shards.union import (
    Member,
    MemberAsked,
    PartOfMerged,
    Union,
    UnionCopy,
    UnionRequest,
    member_lake,
    member_place,
    shard_name,
    unfit_as_of,
    unfit_sources,
    unlike_sources,
)
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import UnionRefused
from airflow_provider_cdc.jobs.runtime.step import sink_of
from airflow_provider_cdc.sinks.registry import open_sink

_ANEW = "trigger a new run"


@dataclass(frozen=True)
class MemberRun:
    """A published run, with its commit record and its merged copies, by the name of the merged table."""

    member: Member
    run: Run
    decision: Decision
    copies: dict[str, CopyTables]

    @property
    def source(self) -> str:
        return self.member.source_conn_id

    def position_of(self, name: str) -> dict[str, Any]:
        """Return the position of this source in the copy of a merged table, with the history that it belongs to."""
        history = self.run.manifest.history_of(self.copies[name].first.table.name)
        return {**self.member.position, **({"history": history} if history else {})}

    def files(self, name: str) -> dict[str, tuple[StagedFile, ...]]:
        """Return the files of each shard of a merged table, by the shard's name. The names are relative to the target
        of the union."""
        copy = self.copies[name]
        place = LakeUri.parse(sink_of(self.run.manifest).copy_folder(self.run.run_id, copy.name).uri).decoded
        in_lake = place[len(LakeUri.parse(self.run.manifest.lake).segments) :]
        folder = "/".join([member_place(self.source), *in_lake])
        tables = [str(entry.table.name) for entry in copy.tables]
        return {
            shard_name(self.source, table): tuple(
                replace(file, name=f"{folder}/{file.base_name}") for file in self.decision.files_of(table)
            )
            for table in tables
        }


def members_of(request: UnionRequest) -> list[MemberRun]:
    """Return the runs that a union unites.

    :raises UnionRefused: a run is not the published run of its source in this target, or the runs cannot be united.
    :raises ManifestError: the records of a run are damaged.
    """
    members = [_member(request, asked) for asked in request.members]
    what, hint = unfit_sources({member.source: member.run.manifest.source for member in members})
    if what:
        raise _refused(request, what, hint)
    requested = sorted({member.run.manifest.options.as_of for member in members} - {""})
    if len(requested) > 1:
        raise _refused(request, f"the runs were requested as of {', '.join(requested)}", "give all one `as_of`")
    for value in requested:
        what, hint = unfit_as_of(value)
        if what:
            raise _refused(request, what, hint)
    return members


def as_of(members: Sequence[MemberRun]) -> tuple[str, str]:
    """Return the time or position that was requested for the members, and the one that a member could not reach. The
    other members have a later position than a requested time."""
    manifests = [member.run.manifest for member in members]
    requested = next((manifest.options.as_of for manifest in manifests if manifest.options.as_of), "")
    return requested, next((manifest.missed_as_of for manifest in manifests if manifest.missed_as_of), "")


def check_latest(request: UnionRequest, members: Sequence[MemberRun]) -> None:
    """Check that no newer copy of a member's source was published. So unions are never set back: of two unions, one is
    newer in all sources.

    :raises UnionRefused: there is a newer copy.
    """
    for member in members:
        sink = sink_of(member.run.manifest)
        for copy in member.copies.values():
            head = sink.head(copy.name)
            if head is None or head.run_id != member.run.run_id:
                newer = "none" if head is None else f"run {head.run_id}"
                what = f"{member.source}: the latest copy of its shards is that of {newer}, not of {member.run.run_id}"
                raise _refused(request, what, "unite the latest runs of all sources: trigger a new run")


def manifests_now(request: UnionRequest) -> dict[str, str]:
    """Return the digests of the manifests of the members, by source. A run whose folder was removed has none."""
    folders = {asked.source_conn_id: Storage(asked.run_uri) for asked in request.members}
    return {source: Run.load(folder).digest for source, folder in folders.items() if Run.exists(folder)}


def superseded(request: UnionRequest, union: Union) -> UnionRefused | None:
    """Return an error if the files of a union were removed because a newer copy of a source was published.

    This happens if the task that publishes a union was interrupted, and runs again after the next run of a source.
    """
    for member in union.members:
        sink = open_sink(LAKE_FORMAT, Storage(member_lake(request.target, member.source_conn_id)))
        for name, copy in union.copies.items():
            head = sink.head(copy.name(name))
            if head is not None and head.run_id != member.run_id:
                what = f"{member.source_conn_id}: the newer run {head.run_id} has replaced the files of {member.run_id}"
                return _refused(request, what, "unite the latest runs of all sources: trigger a new run")
    return None


def unlike(members: Sequence[MemberRun]) -> dict[str, list[str]]:
    """Return, by the name of the merged table, why the copies of the members do not fit into one table."""
    return unlike_sources({member.source: _parts(member.copies) for member in members})


def union_copy(union_id: str, name: str, members: Sequence[MemberRun], published_at: str) -> UnionCopy:
    """Return the copy of a merged table, from the files of all members.

    :raises UnionRefused: two of the files have one name.
    """
    first = members[0].copies[name].first.table
    files = {shard: own for member in members for shard, own in member.files(name).items()}
    # The files of a copy are in one folder. Their names end in random numbers.
    names = Counter(file.base_name for own in files.values() for file in own)
    if twice := [file_name for file_name, count in names.items() if count > 1]:
        raise UnionRefused(f"several sources have a file with the name {twice[0]}", where=name, hint=_ANEW)
    positions = tuple(member.position_of(name) for member in members)
    certificate = _certificate(union_id, name, members, published_at)
    condition, columns = first.selection.condition, first.selection.columns
    return UnionCopy(files, positions, certificate.encoded(), condition, columns)


def recorded_at(members: Sequence[MemberRun]) -> str:
    """Return the latest time at which one of the members recorded its position."""
    return max((member.run.manifest.created_at for member in members), key=_time)


def _member(request: UnionRequest, asked: MemberAsked) -> MemberRun:
    folder = Storage(asked.run_uri)
    if not Run.exists(folder):
        what = f"{asked.source_conn_id}: the records of the run {run_id_in(folder)} are gone, because of a newer run"
        raise _refused(request, what, _ANEW)
    run = Run.load(folder)
    manifest = run.manifest
    if manifest.source_conn_id != asked.source_conn_id or manifest.lake != member_lake(
        request.target, asked.source_conn_id
    ):
        what = f"{run.folder.uri} is not the folder of a run of {asked.source_conn_id} for this target"
        raise _refused(request, what, _ANEW)
    if manifest.lake_format != LAKE_FORMAT:
        what = f"{asked.source_conn_id}: its copies have the format {manifest.lake_format}"
        raise _refused(request, what, "tables of several sources are merged as Parquet only: leave out `Lake.format`")
    if not is_published(run) or run.commit is None:
        raise _refused(request, f"{asked.source_conn_id}: the run {run.run_id} is not published", _ANEW)
    decision = decision_of(run)
    copies = {str(copy.name): copy for copy in published_copies(manifest, decision) if copy.merged}
    position = position_entry(
        asked.source_conn_id,
        run.run_id,
        manifest.position_key,
        run.position_text,
        manifest.created_at,
        manifest.source,
    )
    fixed = run.generation == 1 and not manifest.at_upper and not manifest.options.as_of
    member = Member(asked.source_conn_id, asked.run_uri, run.run_id, run.digest, run.commit.record, position, fixed)
    return MemberRun(member, run, decision, copies)


def _parts(copies: Mapping[str, CopyTables]) -> dict[str, PartOfMerged]:
    tables = {name: copy.first.table for name, copy in copies.items()}
    return {
        name: PartOfMerged(table.shard, table.selection) for name, table in tables.items() if table.shard is not None
    }


def _certificate(union_id: str, name: str, members: Sequence[MemberRun], published_at: str) -> Certificate:
    parts = {member.source: certificate_of_copy(member.run, member.decision, member.copies[name]) for member in members}
    first = next(iter(parts.values()))
    files = [
        replace(file, shard=shard_name(source, file.shard)) for source, part in parts.items() for file in part.files
    ]
    shards = tuple(
        ShardPart(shard_name(source, one.shard), one.rows, one.digest, one.made, one.derivation, one.policies)
        for source, part in parts.items()
        for one in part.shards
    )
    total = total_of(file for member in members for own in member.files(name).values() for file in own)
    positions = tuple(member.position_of(name) for member in members)
    why = f"merged from {format_count(len(shards), 'shard')} of {format_count(len(parts), 'source')}"
    return replace(
        first,
        run_id=union_id,
        position="",
        positions=positions,
        recorded_at=recorded_at(members),
        published_at=published_at,
        as_of=as_of(members)[0],
        source=merged_source(positions),
        history={},
        made=Making("merge", "", why, "", "", ""),
        rows=sum(part.rows for part in parts.values()),
        digest="" if total is None else total.hex,
        files=tuple(sorted(files, key=lambda file: file.name)),
        shards=shards,
        scrubbed=sum(part.scrubbed for part in parts.values()),
        scrubbed_bytes=sum(part.scrubbed_bytes for part in parts.values()),
    )


def _refused(request: UnionRequest, what: str, hint: str) -> UnionRefused:
    return UnionRefused(what, where=f"union {request.id}", hint=hint)


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
