"""The files that are rewound, and the files of which each copy consists afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.errors import naming
from airflow_provider_cdc.jobs.apply.rewind import Restore, Rewind, RewindOutcome
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles, bucket_ranges
from airflow_provider_cdc.jobs.roll_forward.plan import BaseFile
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.reread_passes import read_record
from airflow_provider_cdc.sources.api.window import BUCKETS

TASKS_PER_SLOT = 4


REWIND_BYTES = 64 * 2**20
"""Bytes of files per task. A smaller task would cost more than it saves, because the footers rule out most files."""


RESTORE_ROWS = 250_000
"""Number of rows to restore per task. A smaller task would cost more than it saves."""


def layers_of(step: Step) -> dict[int, list[Rewind]]:
    """Return the layers of rows that were read again, by the table's index. Each layer has the rows of one pass. The
    earliest layer is first."""
    layers: dict[int, list[Rewind]] = {}
    if step.manifest.at_upper:
        again = read_record(step.run)
        for index, entry in enumerate(step.tables):
            name = str(entry.table.name)
            layers[index] = [Rewind(index, layer.files.get(name, ()), layer.since) for layer in again.layers]
    return layers


def count_files(files: Sequence[StagedFile], layers: Sequence[Rewind]) -> int:
    return len(files) + sum(len(layer.files) for layer in layers)


def orders_of(
    step: Step,
    change: NetChangeFiles,
    files: Sequence[Sequence[StagedFile]],
    layers: Mapping[int, Sequence[Rewind]],
    copied: Sequence[int],
) -> list[Rewind | Restore]:
    """Return the orders for tables with touched keys. The largest order is first."""
    orders: list[Rewind | Restore] = []
    for index in copied:
        entry = step.tables[index]
        if not change.keys(index) and not entry.table.eras:
            continue
        if entry.table.keyless:
            orders.append(Rewind(index, tuple(files[index])))
            continue
        # Touched keys often lie close together, so neighbouring files go to different tasks.
        size = sum(file.bytes for file in files[index])
        tasks = min(len(files[index]), step.slots * TASKS_PER_SLOT, 1 + size // REWIND_BYTES)
        orders += [Rewind(index, tuple(files[index][task::tasks])) for task in range(tasks)]
        if index in layers:
            # No layer follows the last layer, so no touched row has to be removed from the last layer.
            orders += [layer for layer in layers[index][:-1] if layer.files]
            continue
        if restored := change.now(index):
            tasks = min(BUCKETS, step.slots * TASKS_PER_SLOT, 1 + restored // RESTORE_ROWS)
            orders += [Restore(index, buckets) for buckets in bucket_ranges(tasks)]
    return sorted(orders, key=_weight, reverse=True)


def _weight(order: Rewind | Restore) -> float:
    # Start with the restore orders, because each of them has work to do. In a rewind order, most files may have no
    # touched rows.
    return sum(file.bytes for file in order.files) if isinstance(order, Rewind) else math.inf


def final_files(
    step: Step,
    files: Sequence[Sequence[StagedFile]],
    layers: Mapping[int, Sequence[Rewind]],
    bases: Mapping[int, Sequence[BaseFile]],
    outcomes: Sequence[RewindOutcome],
    copied: Sequence[int],
) -> tuple[dict[int, list[StagedFile]], dict[int, list[StagedFile]]]:
    """Return, for each table, the files that this run wrote, and the files that it keeps from the base copy."""
    final: dict[int, list[StagedFile]] = {index: [] for index in copied}
    kept_by_table: dict[int, list[StagedFile]] = {}
    worked_on = {outcome.table for outcome in outcomes}
    for outcome in outcomes:
        final[outcome.table] += [*outcome.adopted, *outcome.written]
    for index in copied:
        entry = step.tables[index]
        if index in bases:
            kept_files = [file for outcome in outcomes if outcome.table == index for file in outcome.kept]
            kept_files = kept_files if index in worked_on else [staged_file.file for staged_file in bases[index]]
            # If the table has rows now, drop the empty file, which only shows the schema.
            kept_by_table[index] = [
                file
                for file in kept_files
                if file.rows or not any(staged_file.rows for staged_file in [*kept_files, *final[index]])
            ]
        elif index not in worked_on:
            final[index] += files[index]
        if index not in bases:
            for layer in layers.get(index, ())[-1:]:
                final[index] += layer.files
        if not final[index] and not kept_by_table.get(index):
            # An empty file shows readers the schema of a table without rows.
            with naming(str(entry.table.name)):
                final[index].append(step.files_of(index).write_empty("staged", "part-empty"))
        final[index].sort(key=lambda file: file.base_name)
    return final, kept_by_table
