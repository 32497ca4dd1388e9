"""Fixes a later position for a run, and decides how each of its tables comes to this position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.as_of import reaches
from airflow_provider_cdc.core.run.ledger import Link
from airflow_provider_cdc.core.run.manifest import (
    Basis,
    InitialPoint,
    Manifest,
    MissedPast,
    Restart,
    RunTable,
    TablePlan,
)
from airflow_provider_cdc.core.shards.copy_tables import with_merged
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LogGone,
    SchemaChanged,
    SourceUnavailable,
    TerminalError,
)
from airflow_provider_cdc.jobs.begin.base_selection import bases_of, with_known_of_bases
from airflow_provider_cdc.jobs.begin.preparation import lake_format, with_shards
from airflow_provider_cdc.jobs.log.log import RunLog, logs_of
from airflow_provider_cdc.jobs.reads import ReadFiles
from airflow_provider_cdc.jobs.restart.altered import (
    carried_tables,
    check_parts,
    log_read_again,
    may_be_carried,
    named,
    read_again,
)
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.planning.point import record_point
from airflow_provider_cdc.sources.planning.survey import layouts


class LogOfReadsGone(Exception):
    """The source no longer has the log of some ``tables`` since they were read. The other tables with the same start
    may have another log: that of carried tables is not in the recorded pieces."""

    def __init__(self, one: RunLog, error: LogGone) -> None:
        super().__init__(error.message)
        self.tables = [str(table.name) for table in one.tables]


class Move:
    """The move of a run to a later position.

    ``altered`` has the tables that were altered, by name, each with the reason. ``bases`` has the finished reads, by
    the table's name, and ``read`` the files of those of the present manifest. ``skipped`` has the tables that the run
    leaves out, and ``lost`` those whose log since their read is gone, each with the reason.
    """

    def __init__(
        self,
        step: Step,
        altered: Mapping[str, str],
        bases: Mapping[str, Basis],
        read: Mapping[str, ReadFiles],
        bound: UpperBound | None,
    ) -> None:
        self.step, self.old, self.altered, self.bases = step, step.manifest, altered, bases
        self._read, self._bound = read, bound
        self.start = str(step.run.generation + 1)
        self.skipped: dict[str, str] = {}
        self.lost: dict[str, str] = {}

    def attempt(self) -> tuple[Manifest, dict[str, Link]]:
        """Fix a later position. Return the manifest for it, and the last piece of each start.

        :raises LogOfReadsGone, SchemaChanged, PreflightError: more tables must be read again, or left out.
        """
        step, old, source = self.step, self.old, self.step.source
        options, missed_past = old.options, old.missed_past
        if options.as_of:
            missed_past = MissedPast(options.as_of, "; ".join(f"{name}: {why}" for name, why in self.altered.items()))
            options = replace(options, as_of="")
        planned = [self._planned(entry) for entry in step.tables]
        kept = [entry for entry in planned if not entry.left_out and entry.start != self.start]
        plans = [_plan(old, entry) for entry in planned if not entry.left_out and entry.start == self.start]
        logs = [*logs_of(step, kept)]
        tables_kept = {table.name: table for one in logs for table in self._renewed(one)}
        point = retry("fix a later position", partial(self._fix_position, plans, options))
        try:
            # The other tables must be unchanged up to the new position, and no unlogged change may have replaced them.
            for one in logs:
                self._check_kept(one)
            bases = bases_of(source, plans, point, Storage(old.scratch), past=False)
            point = with_known_of_bases(plans, point, Storage(old.scratch))
            point = with_shards(source, plans, point, _merged_again(planned, self.start), old.options.merging)
            tables = {table.name: table for table in point.tables}
            check_parts(source, [entry for entry in planned if entry.table.name in tables], tables)
            left_out = {**old.skipped, **with_merged(step.tables, self.skipped)}
            lake_names = list(dict.fromkeys(entry.table.lake_name for entry in planned if not entry.left_out))
            laid_out = layouts(lake_names, list(left_out), old.options.lake)
            carried = carried_tables(step, self._may_be_carried(planned), tables, point, laid_out)
            pieces = self._last_pieces(logs, kept, carried, point)
            # The shards of a merged table have one place, so a shard that is read again gets that of the others.
            others = [*kept, *(entry for entry in planned if entry.base)]
            placed = {entry.table.copy_name for entry in others}
            live = {
                entry.table.name: entry.table.selection
                for entry in planned
                if entry.is_read and entry.start == self.start and str(entry.table.name) not in carried
                if entry.table.copy_name not in placed
            }
            format = old.options.lake.format
            prepare = lake_format(format, step.sink, old.run_id, source, laid_out).prepare
            try:
                places = prepare([tables[name] for name in live], live, {})
            except ConfigurationError as error:
                # A table of the lake cannot take the new columns. Without the table, the run may go on.
                if error.where not in self.altered:
                    raise
                raise SchemaChanged(error.message, where=error.where, hint=error.hint) from error
        except (CdcError, LogOfReadsGone):
            with suppress(CdcError):
                source.discard(point.identity)
            raise
        entries = []
        for entry in planned:
            table = entry.table
            if str(table.name) in carried:
                entry = carried[str(table.name)]
            elif table.name in tables_kept:
                entry = replace(entry, table=tables_kept[table.name])
            elif table.name in tables:
                table = replace(tables[table.name], selection=table.selection)
                entry = replace(entry, table=table, place=places.get(table.copy_name, entry.place))
            entries.append(entry)
        used = {entry.start for entry in entries if not entry.left_out}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        reread = {name: why for name, why in self.altered.items() if name not in carried}
        over = {name: why for name, why in self.altered.items() if name in carried}
        restart = Restart(reread, old.initial_position, now, step.run.digest, over)
        manifest = replace(
            old,
            options=options,
            missed_past=missed_past,
            initial_position=str(point.position),
            identity=point.identity,
            created_at=now,
            tables=tuple(entries),
            skipped=left_out,
            bases=bases,
            start=self.start,
            starts={key: start for key, start in old.all_starts.items() if key in used},
            restarts=(*old.restarts, restart),
        )
        return manifest, pieces

    def _planned(self, entry: RunTable) -> RunTable:
        """Return the table with the way in which it comes to the new position."""
        name = str(entry.table.name)
        if entry.left_out or name in self.skipped:
            return replace(entry, at_upper=False, base="", basis=None, left_out=True)
        again = replace(entry, basis=None, start=self.start)
        if name in self.altered:
            return read_again(self.old, again, self.altered[name])
        basis = self.bases.get(name)
        if entry.base or basis is None:
            return again
        if name in self.lost:
            return replace(again, reason=f"read again: {self.lost[name]}; {entry.reason}")
        if entry.basis is None and (why := self.step.source.reason_not_rollable(entry.table)):
            log(f"{name} is read again, too, because {why}")
            return again
        return replace(entry, basis=basis)

    def _fix_position(self, plans: Sequence[TablePlan], options: StepOptions) -> InitialPoint:
        step, old = self.step, self.old
        point = record_point(step.source, options, plans, old.run_id)
        # No read can be undone if the new position contains it. The same is true for the end of each recorded piece.
        ends = [links[-1].upper for links in step.run.state.pieces.values() if links]
        bounds = [old.position_in(upper) for upper in ends] + ([self._bound.upper] if self._bound is not None else [])
        if not all(reaches(point.position, upper) for upper in bounds):
            step.source.discard(point.identity)
            raise SourceUnavailable(
                "the server has not executed all transactions yet that earlier reads may have seen",
                hint="retry the task",
            )
        return point

    def _renewed(self, one: RunLog) -> Sequence[Table]:
        """Return the tables of a log with the facts that the next run compares with the tables. Call this before the
        later position is fixed, so that an unlogged change after the position differs from these facts.

        :raises SchemaChanged: a table was changed without an entry in the log since it was read.
        """
        try:
            one.check()
            return retry("check the tables that are kept", partial(one.source.refresh_identities, one.tables))
        except LogGone as error:
            raise LogOfReadsGone(one, error) from error

    def _check_kept(self, one: RunLog) -> None:
        """Check that the tables of a log are unchanged up to the new position, and that the log is complete."""
        try:
            one.check()
            one.source.check_continued(one.tables)
        except LogGone as error:
            raise LogOfReadsGone(one, error) from error

    def _may_be_carried(self, planned: Sequence[RunTable]) -> list[RunTable]:
        """Return the finished reads of altered tables that may be carried, as they are until now."""
        found = []
        for entry, again in zip(self.step.tables, planned, strict=True):
            name = str(entry.table.name)
            basis = self.bases.get(name)
            if basis is None or not again.is_read or name in self.lost:
                continue
            if name in self.altered and may_be_carried(self.step, entry, basis, self._bound):
                found.append(replace(entry, basis=basis, feed_gap=again.feed_gap))
        return found

    def _last_pieces(
        self, logs: Sequence[RunLog], kept: Sequence[RunTable], carried: dict[str, RunTable], point: InitialPoint
    ) -> dict[str, Link]:
        """Read the last piece of each start, up to the new position. Remove tables from ``carried`` if their log cannot
        be carried.

        :param logs: the checked logs of the tables that are ``kept``.
        """
        step, pieces = self.step, dict[str, Link]()
        # These sources know which statements have explained something: they explain no later change.
        sources = {one.id: one.source for one in logs if one.pieces}
        while True:
            try:
                for one in logs_of(step, [*kept, *carried.values()]):
                    if one.pieces and one.id not in pieces:
                        source = sources.get(one.id, one.source)
                        last = one.up_to(point.position, source, int(self.start))
                        pieces |= {one.id: last} if last is not None else {}
                return pieces
            except LogGone as error:
                raise LogOfReadsGone(one, error) from error
            except TerminalError as error:
                # The log of the other tables may still be carried.
                together = [name for name, entry in carried.items() if entry.start == one.id]
                broken = named(error, together)
                if not together or (broken is None and named(error, [str(table.name) for table in one.tables])):
                    raise
                for name in together if broken is None else [broken]:
                    log_read_again(name, error)
                    del carried[name]


def _merged_again(planned: Sequence[RunTable], start: str) -> set[TableName]:
    """Return the merged tables of which all shards are read again, from this start."""
    shards = [(entry.table.shard.merged, entry) for entry in planned if entry.table.shard is not None]
    kept = {merged for merged, entry in shards if not entry.is_read or entry.start != start}
    return {merged for merged, _ in shards} - kept


def _plan(manifest: Manifest, entry: RunTable) -> TablePlan:
    options = entry.table.options
    return TablePlan(
        entry.table.name,
        entry.consistency,
        entry.reason,
        unrepresentable=options.unrepresentable,
        at_upper=entry.at_upper,
        base=entry.base,
        base_position=manifest.bases[entry.base].position if entry.base else "",
        selection=entry.table.selection,
        arrays=options.arrays,
        evolution=Evolution(entry.table.eras, entry.table.columns) if entry.base else None,
        shard=entry.table.shard,
    )
