"""How a run begins: at an initial position that is fixed once, and kept for as long as it can be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from airflow_provider_cdc.core.copies.base_selection import bases_of, with_known_of_bases
from airflow_provider_cdc.core.copies.damage_note import damage_of
from airflow_provider_cdc.core.copies.head import source_of
from airflow_provider_cdc.core.copies.history_of_run import Heads, histories_of
from airflow_provider_cdc.core.options.declare import values_of
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.plan import InitialPoint, MissedPast, TablePlan
from airflow_provider_cdc.core.run.run import Run, scratch_of
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, LogGone

_log = logging.getLogger(__name__)


class RunSource(Protocol):
    """What a run needs of its source to begin; ``sources.capabilities`` says more."""

    @property
    def kind(self) -> str: ...

    @property
    def position_key(self) -> str: ...

    def check_identity(self, identity: Mapping[str, str], position: Position) -> None: ...


@runtime_checkable
class Discards(Protocol):
    """A source that made something on its server for the initial position, and can drop it again."""

    def discard(self, identity: Mapping[str, str]) -> None: ...


def begin(
    source: RunSource,
    plans: Sequence[TablePlan],
    options: StepOptions,
    record: Callable[[], InitialPoint],
    *,
    run_id: str,
    lake: str,
    scratch: str = "",
    source_conn_id: str = "",
    skipped: Mapping[str, str] | None = None,
    heads: Heads | None = None,
    missed_past: MissedPast | None = None,
) -> Run:
    """Begin a run, or go on with the one that began: what was read so far belongs to its initial position.

    Unless the source no longer has what it kept for that position: then nothing more can be read for it, and the run
    begins anew.

    :param record: fixes the initial position; called only if the run does not go on.
    :param lake: URI of the folder to publish in.
    :param scratch: URI of the folder in which the run's own folder lies; empty: a folder in the lake.
    :param source_conn_id: the connection to the source.
    :param skipped: why each table that was named is no part of the run, by its name.
    :param missed_past: the past that the run was to be exact at and cannot be.
    :param heads: the lake's copies; None: the run's copies do not tell which history they are of.
    :raises LockNotGranted: a table needs the lock and it was not granted.
    :raises ConfigurationError: the run began on a source of another kind.
    """
    lake, scratch = Storage(lake).uri, Storage(scratch or scratch_of(lake)).uri
    folder = Storage(scratch).folder(run_id)
    current = _current(folder)
    if current is not None and _goes_on(current, source, plans, options):
        return current
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        initial = record()
        bases = bases_of(source, plans, initial, Storage(scratch), past=bool(options.as_of))
        initial = with_known_of_bases(plans, initial, Storage(scratch))
        histories = {}
        if heads is not None:
            present = source_of(source.kind, initial.identity, source_conn_id)
            histories = histories_of(source, heads, Storage(scratch), plans, initial, present, run_id, created_at)
    except CdcError as error:
        # A concurrent attempt may already have begun the run, and then discards what this one was making.
        current = _current(folder)
        if current is None or not _goes_on(current, source, plans, options):
            raise
        _log.info("A concurrent attempt has fixed the position; this one ended with: %s", error)
        return current
    manifest = Manifest(
        run_id=run_id,
        lake=lake,
        scratch=scratch,
        kind=source.kind,
        position_key=source.position_key,
        initial_position=str(initial.position),
        identity=dict(initial.identity),
        created_at=created_at,
        tables=_run_tables(plans, initial),
        options=options,
        source_conn_id=source_conn_id,
        skipped=dict(skipped or {}),
        bases=bases,
        histories=histories,
        missed_past=missed_past,
    )
    # A concurrent attempt may already have begun the run, and chunks may have been read since: rows read before a
    # position must never be rewound to it.
    run: Run | None = None
    while run is None or run.digest != records.digest_of(manifest):
        current = _current(folder)
        if current is not None and _goes_on(current, source, plans, options):
            _discard(source, initial.identity)
            return current
        run = Run.create(manifest, instead_of=current)
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


def _goes_on(run: Run, source: RunSource, plans: Sequence[TablePlan], options: StepOptions) -> bool:
    """Whether the run goes on with the manifest that it has."""
    manifest = run.manifest
    if manifest.kind != source.kind:
        raise ConfigurationError(
            f"the run began on a {manifest.kind} source, and this is a {source.kind} one",
            where=run.folder.uri,
            hint="correct the connection, or trigger a new run",
        )
    if run.abandoned:
        return False
    if not run.committed:
        try:
            source.check_identity(manifest.identity, manifest.initial)
        except LogGone as error:
            _log.warning("The run begins anew: %s", error)
            return False
        if damaged := _damaged_bases(run, plans):
            _log.warning("The run begins anew: the copy that was to be rolled forward is damaged: %s", damaged)
            return False
    _log.info(
        "The run began at %s: keeping %s %s", manifest.created_at, manifest.position_key, manifest.initial_position
    )
    tables = {_said(entry.table.name, entry.table.selection) for entry in manifest.tables}
    if tables != (wanted_tables := {_said(plan.table, plan.selection) for plan in plans}):
        _log.warning(
            "The run keeps the tables that it began with, although the plan is another now (only in the run: %s; "
            "only in the plan: %s). Trigger a new run to copy what the plan says.",
            ", ".join(sorted(tables - wanted_tables)) or "none",
            ", ".join(sorted(wanted_tables - tables)) or "none",
        )
    if differences := _other_options(run, plans, options):
        _log.warning(
            "The run keeps the options that it began with, although others are given now (%s). Trigger a new run to "
            "have it go by these.",
            "; ".join(differences),
        )
    return True


def _other_options(run: Run, plans: Sequence[TablePlan], options: StepOptions) -> list[str]:
    """Which options are others now than those that the run began with, in words."""
    recorded_options, given_options = values_of(run.manifest.options), values_of(options)
    differences = [
        f"{name}: {recorded_options[name]!r}, now {given_options[name]!r}"
        for name in recorded_options
        if recorded_options[name] != given_options[name]
    ]
    planned = {plan.table: plan.unrepresentable for plan in plans}
    pairs = {
        (recorded, now)
        for entry in run.manifest.tables
        if (now := planned.get(entry.table.name, "")) and (recorded := entry.table.options.unrepresentable) != now
    }
    return differences + [f"unrepresentable: {recorded!r}, now {now!r}" for recorded, now in sorted(pairs)]


def _said(table: TableName, selection: Selection) -> str:
    return str(table) if selection.whole else f"{table} ({selection})"


def _damaged_bases(run: Run, plans: Sequence[TablePlan]) -> str:
    """Which tables of the run were to be rolled forward from a copy that is damaged, and have another plan now."""
    planned = {plan.table: plan.base for plan in plans}
    scratch = run.folder.parent()
    return ", ".join(
        str(entry.table.name)
        for entry in run.manifest.tables
        if entry.base
        and planned.get(entry.table.name, entry.base) != entry.base
        and damage_of(scratch.folder(entry.base), entry.table.name)
    )


def _discard(source: RunSource, identity: Mapping[str, str]) -> None:
    """Have the source drop what it keeps for a position that does not count. It goes with the run at the latest."""
    try:
        if isinstance(source, Discards):
            source.discard(identity)
    except CdcError as error:
        _log.warning("The source keeps what it made for another attempt until the run ends: %s", error)


def _run_tables(plans: Sequence[TablePlan], initial: InitialPoint) -> tuple[RunTable, ...]:
    """The tables of a run, each as it was planned to be read."""
    by_name = {plan.table: plan for plan in plans}
    return tuple(
        RunTable(replace(table, selection=plan.selection), plan.consistency, plan.reason, plan.at_upper, plan.base)
        for table, plan in ((table, by_name[table.name]) for table in initial.tables)
    )
