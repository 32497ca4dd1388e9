"""Removes the copies of earlier unions (option ``keep``), and the records of unions that have no copies any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.shards.union import UNIONS, Union, UnionCopy, read_commit
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sinks.registry import open_sink

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
        say(f"unite: WARNING: could not remove older copies; the next run tries again: {error}")
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
        one = read_commit(target.folder(UNIONS, union_id))
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
            say(f"unite: WARNING: did not remove {strange[0]}: the record of its copy does not name it")
            continue
        removed.append(uri)
    return removed


def _remove_records(target: Storage, sink: Sink, union: Union) -> None:
    """Remove the records of unions that have no copies, some days after they were written. Until then, a late try of
    such a union may still be in progress."""
    now = target.folder(UNIONS, union.id).newest_time()
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
