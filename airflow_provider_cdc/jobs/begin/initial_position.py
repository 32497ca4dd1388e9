"""Begins a run and fixes its initial position. The run keeps this position, unless the source no longer has the log
since this position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from airflow_provider_cdc.core.copies.removal import damage_of
from airflow_provider_cdc.core.options.declare import values_of
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.facts import Facts, source_of
from airflow_provider_cdc.core.run.manifest import (
    PLAIN_PARQUET,
    InitialPoint,
    LakeFormat,
    Manifest,
    MissedPast,
    TablePlan,
)
from airflow_provider_cdc.core.run.run import Run, RunRestarted, scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, LogGone, SourceReplaced
from airflow_provider_cdc.jobs.begin.base_selection import bases_of, with_changes_here, with_known_of_bases
from airflow_provider_cdc.jobs.begin.history_of_run import histories_of
from airflow_provider_cdc.jobs.begin.preparation import (
    places_of_bases,
    prepare_places,
    run_tables,
    with_merged_names,
    with_shards,
)
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sources.api.source import Source

_log = logging.getLogger(__name__)


def begin(
    source: Source,
    plans: Sequence[TablePlan],
    options: StepOptions,
    record: Callable[[], InitialPoint],
    *,
    run_id: str,
    lake: str,
    scratch: str = "",
    source_conn_id: str = "",
    skipped: Mapping[str, str] | None = None,
    heads: Sink | None = None,
    missed_past: MissedPast | None = None,
    may_miss_past: bool = False,
    lake_format: LakeFormat = PLAIN_PARQUET,
    group: str = "",
) -> Run:
    """Begin a run, or continue a run that has begun. A continued run keeps its initial position, because the rows that
    were already read belong to this position.

    If the source no longer has the log or the slot for the initial position, no more rows can be read for this
    position, and the run begins anew. It also begins anew if another server took over, and has this position.

    :param record: a function that fixes the initial position. It is not called if the run continues.
    :param lake: URI of the folder to publish in.
    :param scratch: URI of the folder that holds the run's own folder. If it is empty, this is a folder in the lake.
    :param source_conn_id: the connection to the source.
    :param skipped: the reasons why named tables are not part of the run, by the table's name.
    :param missed_past: the requested point of the past, if the run cannot reach it.
    :param may_miss_past: whether the run may copy the present instead of a requested point of the past.
    :param lake_format: the format of the copies.
    :param group: the task group of the run.
    :param heads: the copies in the lake. If it is None, the copies of this run do not record their history.
    :raises LockNotGranted: a table needs the lock, and the lock was not granted.
    :raises ConfigurationError: the run began on a source of another kind.
    """
    lake, scratch = Storage(lake).uri, Storage(scratch or scratch_of(lake)).uri
    folder = Storage(scratch).folder(run_id)
    current = _current(folder)
    if current is not None and _goes_on(current, source, plans, options):
        return current
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        initial = with_shards(source, plans, record())
        plans = with_changes_here(source, plans, Storage(scratch), options)
        bases = bases_of(source, plans, initial, Storage(scratch), past=bool(options.as_of))
        initial = with_known_of_bases(plans, initial, Storage(scratch))
        histories = {}
        if heads is not None:
            present = source_of(source.kind, initial.identity, source_conn_id)
            histories = histories_of(source, heads, Storage(scratch), plans, initial, present, run_id, created_at)
        selections = {plan.table: plan.selection for plan in plans}
        of_bases = {} if lake_format is PLAIN_PARQUET else places_of_bases(plans, Storage(scratch))
        places, refused = prepare_places(lake_format, initial.tables, selections, of_bases, skips=options.skips)
    except CdcError as error:
        # A concurrent attempt may already have begun the run, and may have dropped the objects, such as a slot, that
        # this attempt was creating.
        current = _current(folder)
        if current is None or not _goes_on(current, source, plans, options):
            raise
        _log.info("A concurrent attempt has fixed the run's position. This attempt ended with: %s", error)
        return current
    for name, why in refused.items():
        _log.warning("%s is SKIPPED and will not be published: %s", name, why)
    tables = [table for table in initial.tables if str(table.name) not in refused]
    manifest = Manifest(
        run_id=run_id,
        lake=lake,
        scratch=scratch,
        kind=source.kind,
        position_key=source.position_key,
        initial_position=str(initial.position),
        identity=initial.identity,
        created_at=created_at,
        tables=run_tables(plans, tables, places),
        options=options,
        source_conn_id=source_conn_id,
        skipped={**(skipped or {}), **with_merged_names(plans, refused)},
        bases=bases,
        histories=histories,
        missed_past=missed_past,
        may_miss_past=may_miss_past,
        lake_format=lake_format.name,
        group=group,
    )
    # A concurrent attempt may already have begun the run, and may have read chunks since. In that case, continue the
    # run that the other attempt began. A row must never be rewound to a position that was recorded after the row was
    # read.
    while True:
        current = _current(folder)
        if current is not None and _goes_on(current, source, plans, options):
            _discard(source, initial.identity)
            return current
        with suppress(RunRestarted):
            run = Run.create(manifest, after=current)
            break
    for identity in initial.superseded:
        _discard(source, identity)
    _log.info(
        "%s is %s (%d tables, lock held for %.0f ms)",
        source.position_key,
        initial.position,
        len(initial.tables),
        initial.lock_seconds * 1000,
    )
    return run


def _current(folder: Storage) -> Run | None:
    return Run.load(folder) if Run.exists(folder) else None


def _goes_on(run: Run, source: Source, plans: Sequence[TablePlan], options: StepOptions) -> bool:
    """Return whether the run continues with its present manifest."""
    manifest = run.manifest
    if manifest.kind != source.kind:
        raise ConfigurationError(
            f"the run began on a {manifest.kind} source, but the source is now a {source.kind} source",
            where=run.folder.uri,
            hint="correct the connection, or trigger a new run",
        )
    if run.ended:
        return False
    if not run.committed:
        try:
            source.check_identity(run.expected_identity(), manifest.initial)
            for key, start in manifest.starts.items():
                # Otherwise the run has recorded the log since these reads.
                if not run.pieces(key):
                    source.check_identity(start.facts, manifest.position_of(key))
        except LogGone as error:
            _log.warning("The run begins anew: %s", error)
            return False
        except SourceReplaced as error:
            if source.take_over(manifest.identity, manifest.initial, ()) == manifest.identity:
                raise
            _log.warning("The run begins anew on the server that took over: %s", error)
            return False
        if damaged := _damaged_bases(run, plans):
            _log.warning("The run begins anew, because the copy that was to be rolled forward is damaged: %s", damaged)
            return False
    _log.info(
        "The run began at %s, and keeps %s %s", manifest.created_at, manifest.position_key, manifest.initial_position
    )
    tables = {_described(entry.table.name, entry.table.selection) for entry in manifest.tables if not entry.left_out}
    # The run may have left tables of the plan out when it began.
    wanted = [plan for plan in plans if str(plan.table) not in manifest.skipped]
    if tables != (wanted_tables := {_described(plan.table, plan.selection) for plan in wanted}):
        _log.warning(
            "The plan has changed, but the run keeps the tables that it began with (only in the run: %s; only in the "
            "plan: %s). Trigger a new run to copy the tables of the plan.",
            ", ".join(sorted(tables - wanted_tables)) or "none",
            ", ".join(sorted(wanted_tables - tables)) or "none",
        )
    if differences := _other_options(run, plans, options):
        _log.warning(
            "The options have changed (%s), but the run keeps the options that it began with. Trigger a new run to "
            "use the new options.",
            "; ".join(differences),
        )
    return True


def _other_options(run: Run, plans: Sequence[TablePlan], options: StepOptions) -> list[str]:
    """Describe the options that differ from the options at the beginning of the run."""
    recorded_options, given_options = values_of(run.manifest.options), values_of(options)
    if run.manifest.missed_past is not None and options.as_of:
        # Compare the requested points. The run cannot be exact at the requested point, so an earlier try recorded
        # another point.
        recorded_options["as_of"] = run.manifest.missed_as_of
    differences = [
        f"{name}: {recorded_options[name]!r}, now {given_options[name]!r}"
        for name in recorded_options
        if recorded_options[name] != given_options[name]
    ]
    planned = {plan.table: plan.options for plan in plans}
    pairs = {
        (name, getattr(entry.table.options, name), getattr(planned[entry.table.name], name))
        for entry in run.manifest.tables
        for name in ("arrays", "unrepresentable")
        if entry.table.name in planned
    }
    return differences + [
        f"{name}: {recorded!r}, now {now!r}" for name, recorded, now in sorted(pairs) if recorded != now
    ]


def _described(table: TableName, selection: Selection) -> str:
    return str(table) if selection.whole else f"{table} ({selection})"


def _damaged_bases(run: Run, plans: Sequence[TablePlan]) -> str:
    """Return, as one text, the names of the tables whose base is damaged and that have another base in ``plans``."""
    planned = {plan.table: plan.base for plan in plans}
    scratch = run.folder.parent()
    return ", ".join(
        str(entry.table.name)
        for entry in run.manifest.tables
        if entry.base
        and planned.get(entry.table.name, entry.base) != entry.base
        and damage_of(scratch.folder(entry.base), entry.table.name)
    )


def _discard(source: Source, identity: Facts) -> None:
    """Drop the slot and the publication of a position that the run does not use. If this fails, both are dropped at the
    end of the run."""
    try:
        source.discard(identity)
    except CdcError as error:
        _log.warning(
            "Could not drop the slot and publication of another attempt; they stay until the run ends: %s", error
        )
