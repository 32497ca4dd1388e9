"""The union of merged tables whose shards are in several sources: compares the keys of all shards, and publishes them.

Everything that is published is in the commit of the union (`core.shards.union`), so every try publishes the same files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.copies.head import describe, is_of_another_source, known_source
from airflow_provider_cdc.core.positions.kinds import KINDS
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.shards.copy_tables import merged_source
from airflow_provider_cdc.core.shards.union import (
    REQUEST,
    RESULT,
    UNIONS,
    VANISHED_HINT,
    Union,
    UnionCopy,
    UnionRequest,
    UnionResult,
    check_same_members,
    missing_shards,
    read_commit,
    record_commit,
    shard_name,
    union_folder,
)
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.filesystems import convert_store_errors
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, FileDamaged, KeysCollide, UnionRefused
from airflow_provider_cdc.jobs.runtime.progress import log, table
from airflow_provider_cdc.jobs.shards.collisions import ShardFile, Shards, collision_error, compared
from airflow_provider_cdc.jobs.shards.members import (
    MemberRun,
    as_of,
    check_latest,
    manifests_now,
    members_of,
    recorded_at,
    superseded,
    union_copy,
    unlike,
)
from airflow_provider_cdc.sinks.base import Publication, PublishedCopy, Sink, TableChange
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.api.source import ConnectionSettings

# Removes the copies of earlier unions (option ``keep``), and the records of unions that have no copies any more.


RECORD_LIFE = timedelta(days=7)
"""The time for which the records of a union without copies are kept."""


def remove_old_unions(target: Storage, union: Union, keep: int) -> tuple[str, ...]:
    """Remove the copies of earlier unions, except the newest ``keep`` of each table. Return their URIs.

    The union is published, so a failure does not fail it. The next union removes what is left.

    :param keep: 0: remove nothing.
    """
    removed: list[str] = []
    if not keep:
        return ()
    sink = open_sink(LAKE_FORMAT, target)
    try:
        for name, copy in union.copies.items():
            removed += _remove_copies(target, sink, union, name, copy, keep)
        _remove_records(target, sink, union)
    except (CdcError, OSError, pa.ArrowException) as error:
        log(f"unite: WARNING: could not remove older copies; the next run tries again: {error}")
    return tuple(removed)


def _remove_copies(target: Storage, sink: Sink, union: Union, name: str, copy: UnionCopy, keep: int) -> list[str]:
    table_name = copy.name(name)
    head = sink.head(table_name)
    if head is None or head.run_id != union.id:
        # A newer union, whose copies must stay, is the latest. It removes the older copies.
        return []
    earlier: list[tuple[str, str, UnionCopy]] = []
    for union_id in sink.copies(table_name):
        if union_id == union.id:
            continue
        one = read_commit(union_folder(target, union_id))
        if one is not None and name in one.copies and one.copies[name].name(name) == table_name:
            earlier.append((one.recorded_at, union_id, one.copies[name]))
    removed, complete = [], 1
    for _, union_id, old in sorted(earlier, reverse=True, key=lambda one: one[:2]):
        folder = sink.copy_folder(union_id, table_name)
        uri, files = folder.uri, [replace(file, name=file.base_name) for file in old.all_files]
        # A driver that ended while it published may have left a part of a copy, which is not one of the copies to keep.
        if complete < keep and {file.name for file in files} <= {*folder.files()}:
            complete += 1
            continue
        if strange := sink.remove(union_id, table_name, files):
            log(f"unite: WARNING: did not remove {strange[0]}: the record of its copy does not name it")
            continue
        removed.append(uri)
    return removed


def _remove_records(target: Storage, sink: Sink, union: Union) -> None:
    """Remove the records of unions that have no copies, some days after they were written. Until then, a late try of
    such a union may still be in progress."""
    now = union_folder(target, union.id).newest_time()
    for name in target.folders(UNIONS):
        folder = target.folder(*name.split("/"))
        try:
            written = folder.newest_time()
        except FileNotFoundError:
            # Another run removes the folder now.
            continue
        if now - written <= RECORD_LIFE:
            continue
        old = read_commit(folder)
        if old is None or not any(old.id in sink.copies(copy.name(table)) for table, copy in old.copies.items()):
            target.delete_folder(name)


def unite(spark: SparkSession, folder: Storage, settings: ConnectionSettings | None = None) -> UnionResult:
    """Do what the request in ``folder`` asks: publish the merged tables of the members as one table each.

    :param settings: not used, because a union reads published files only.
    :raises KeysCollide: a key is in several shards.
    :raises UnionRefused: the copies cannot be united.
    :raises FileDamaged: a file that the union needs is gone or damaged.
    :raises PublishIncomplete: publishing stopped half-way; call this function again.
    :raises CommitUnknown: it is not known whether a table was published; call this function again.
    """
    started = time.monotonic()
    request = records.read(UnionRequest, folder, REQUEST)
    union = read_commit(folder) or record_commit(folder, _staged(spark, request))
    check_same_members(union, request.members, manifests_now(request), folder)
    target = Storage(request.target)
    try:
        copies = _publish(target, folder, union)
    except FileDamaged as error:
        raise superseded(request, union) or error from error
    result = UnionResult(
        published={str(name): copy.uri for name, copy in copies.items()},
        latest={str(name): copy.is_latest for name, copy in copies.items()},
        rows={name: sum(copy.rows.values()) for name, copy in union.copies.items()},
        shards={name: copy.rows for name, copy in union.copies.items()},
        positions=union.positions,
        in_order=union.in_order,
        skipped=union.skipped,
        removed=remove_old_unions(target, union, request.keep),
        seconds=round(time.monotonic() - started, 3),
    )
    records.write(folder, RESULT, result)
    for name, rows in result.shards.items():
        log(table((f"shard of {name}", "rows"), list(rows.items())))
    for name, why in result.skipped.items():
        log(f"unite: WARNING: {name} is left out: {why}")
    log(f"unite: exact at {_listed(union.positions)}")
    return result


def _staged(spark: SparkSession, request: UnionRequest) -> Union:
    """Check and compare the copies of all members, and return the commit of the union."""
    try:
        return _compared(spark, request)
    except (CdcError, OSError, pa.ArrowException):
        # If a newer run of a source has removed records or files of a member meanwhile, this is the cause.
        check_latest(request, members_of(request))
        raise


def _compared(spark: SparkSession, request: UnionRequest) -> Union:
    members, published_at = members_of(request), datetime.now(UTC).isoformat(timespec="seconds")
    check_latest(request, members)
    sink = open_sink(LAKE_FORMAT, Storage(request.target))
    refused: dict[str, UnionRefused | KeysCollide] = {}
    copies: dict[str, UnionCopy] = {}
    reasons = unlike(members)
    for name in sorted({name for member in members for name in member.copies}):
        try:
            _check_whole(name, members, reasons.get(name, []))
            copy = union_copy(request.id, name, members, published_at)
            _check_shards(sink, request, name, copy)
            _compare(spark, request, name, copy, members)
        except (UnionRefused, KeysCollide) as error:
            refused[name] = error
        else:
            copies[name] = copy
    skips = all(member.run.manifest.options.skips for member in members)
    if refused and not (skips and copies):
        raise next(iter(refused.values()))
    if not copies:
        raise UnionRefused(
            "the runs have no merged tables", where=f"union {request.id}", hint="add a `Merge` to `tables`"
        )
    messages = {name: str(error.message) for name, error in refused.items()}
    return Union(
        request.id,
        tuple(member.member for member in members),
        copies,
        recorded_at(members),
        published_at,
        {name: why for name, why in {**messages, **_left_out(members)}.items() if name not in copies},
        *as_of(members),
    )


def _left_out(members: Sequence[MemberRun]) -> dict[str, str]:
    """Return why the members left out merged tables and shards, by their names."""
    found: dict[str, str] = {}
    for member in members:
        merged = member.run.manifest.options.merging.merge or {}
        for name, why in member.run.result_of(ConsolidateResult).skipped.items():
            found[name if name in merged else shard_name(member.source, name)] = f"{member.source}: {why}"
    return found


def _check_whole(name: str, members: Sequence[MemberRun], reasons: Sequence[str]) -> None:
    """Check that all members have copies of a merged table, in one form.

    :raises UnionRefused: they do not.
    """
    lacking = [member.source for member in members if name not in member.copies]
    if lacking:
        what = f"{', '.join(lacking)}: the run has no copy of it"
        raise UnionRefused(what, where=name, hint="see the log of the task `consolidate` of this source")
    if reasons:
        raise UnionRefused("; ".join(reasons), where=name, hint="make the tables alike in all sources")


def _check_shards(sink: Sink, request: UnionRequest, name: str, copy: UnionCopy) -> None:
    """Check that the latest copy is also a union, and that none of its shards is missing.

    :raises UnionRefused: it is another copy, or a shard is missing.
    """
    head = sink.head(copy.name(name))
    if head is not None and is_of_another_source(head, merged_source(copy.positions), None):
        what = f"the target has copies of one source with this name: {describe(known_source(head))}"
        hint = "use another target, or give the merged table another name"
        raise UnionRefused(what, where=name, hint=hint)
    if head is not None and (missing := missing_shards(head.shards, list(copy.files), request.vanished)):
        what = f"its latest copy (run {head.run_id}) also has the rows of {', '.join(missing[:5])}"
        raise UnionRefused(f"{what}, which no run has copied", where=name, hint=VANISHED_HINT)


def _compare(
    spark: SparkSession, request: UnionRequest, name: str, copy: UnionCopy, members: Sequence[MemberRun]
) -> None:
    """Check that the files of a merged table have one schema, and that no key is in several shards.

    :raises UnionRefused: the files of two sources have different schemas.
    :raises KeysCollide: a key is in several shards.
    """
    target, shards = Storage(request.target), list(copy.files)
    schemas = {member.source: _schema(target, member.files(name)) for member in members}
    (first, schema), *others = schemas.items()
    for source, other in others:
        if not other.equals(schema):
            what = f"the files of {source} have another schema than those of {first}"
            raise UnionRefused(what, where=name, hint="make the tables alike in all sources")
    merged = members[0].copies[name].first.table
    if merged.shard is None or merged.shard.origin_in_key:
        return
    files = [
        ShardFile(index, target, file)
        for index, own in enumerate(copy.files.values())
        for file in own
        if file.live_rows
    ]
    rows = sum(copy.rows.values())
    log(f"unite: {name}: comparing {format_count(rows, 'key')} of {format_count(len(shards), 'shard')}")
    found = compared(spark, Shards(tuple(merged.key), schema), files)
    if found.count:
        positions = {member.source: member.run.position_text for member in members}
        raise collision_error(name, merged.key, shards, found, _listed(positions))


def _schema(target: Storage, files: Mapping[str, Sequence[StagedFile]]) -> pa.Schema:
    first = next(file for own in files.values() for file in own)
    with (
        convert_store_errors(target.uri_of(first.name)),
        target.filesystem.open_input_file(target.path(first.name)) as file,
    ):
        return pq.read_schema(file)


def _publish(target: Storage, folder: Storage, union: Union) -> dict[TableName, PublishedCopy]:
    """Publish the files that the commit names."""
    published: dict[TableName, PublishedCopy] = {}
    sink = open_sink(LAKE_FORMAT, target)
    for name, copy in union.copies.items():
        kind = KINDS[str(copy.positions[0]["kind"])]
        change = TableChange(
            copy.name(name),
            (),
            copy.all_files,
            where=copy.where,
            columns=copy.columns,
            certificate=copy.certificate,
            shards={shard: frozenset(file.base_name for file in files) for shard, files in copy.files.items()},
        )
        publication = Publication(
            union.id,
            Staging(folder),
            (change,),
            kind.position_key,
            "",
            union.recorded_at,
            union.published_at,
            merged_source(copy.positions),
            union.as_of,
            union.missed_as_of,
            positions=copy.positions,
        )
        published |= sink.publish(publication)
    for table_name, one in published.items():
        if not one.is_latest:
            log(f"unite: WARNING: {table_name} is published, but the latest copy of the table is still a newer copy")
    return published


def _listed(positions: Mapping[str, str]) -> str:
    return ", ".join(f"{source} {position}" for source, position in positions.items())
