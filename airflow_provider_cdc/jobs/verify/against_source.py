"""Verifies copies against the source, at the position of the copies, while the source accepts writes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.positions.facts import HistoryRelation, Trace
from airflow_provider_cdc.core.positions.kinds import parse_position
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import (
    ConfigurationError,
    ExactnessError,
    FileDamaged,
    ManifestError,
    StorageUnavailable,
    ValueNotRepresentable,
)
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.verify.compare import Comparison, Side, compare
from airflow_provider_cdc.jobs.verify.copies import OpenedCopy, copy_name, open_copy, sink_of, table_name
from airflow_provider_cdc.jobs.verify.position import CopyOfRun
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    NOT_VERIFIED,
    SAME,
    CopyAsked,
    TableResult,
    VerifyRequest,
)
from airflow_provider_cdc.jobs.verify.rows import RowsToRead, Sample, cut, draw
from airflow_provider_cdc.jobs.verify.source_run import SourceRun, TableRows, text_without_hint
from airflow_provider_cdc.sources.api.source import ConnectionSettings

_WAIT_SECONDS = 1.0
_MERGED = (
    "the copy is merged from several tables, which are not compared with the source: verify its files with its "
    "certificate (`files`), or compare it with another copy (`copies`)"
)
Meanwhile = Callable[[], None]


@dataclass(frozen=True)
class Group:
    """Copies that one throw-away run can verify: all at the position ``at``, and published with the same options.

    If the log has only the keys of changed rows, ``made_by`` is the run that made the copies.
    """

    at: str
    options: TableOptions
    copies: tuple[CopyAsked, ...]
    made_by: Manifest | None = None

    @property
    def as_of(self) -> str:
        """The position of the throw-away run; empty: now."""
        return "" if self.made_by is not None else self.at


def verify_against_source(
    spark: SparkSession, request: VerifyRequest, settings: ConnectionSettings, folder: Storage, meanwhile: Meanwhile
) -> list[TableResult]:
    """Verify the copies of a request against the source. The results are in the order of the request."""
    results: dict[str, TableResult] = {}
    for number, group in enumerate(_groups(request, results)):
        for result in _Verification(spark, request, settings, folder, number, group, meanwhile).results():
            results[result.table] = result
    return [results[asked.table] for asked in request.copies]


def _groups(request: VerifyRequest, results: dict[str, TableResult]) -> list[Group]:
    """Divide the copies into groups. Add a result for each copy whose record shows a fault."""
    members: dict[tuple[str, TableOptions, str], list[CopyAsked]] = defaultdict(list)
    runs: dict[str, Manifest | None] = {"": None}
    for asked in request.copies:
        at, options, run_id = request.at or request.since, request.table, ""
        if not asked.uri and request.lag_seconds < 0:
            try:
                opened = open_copy(request, asked)
            except (ManifestError, FileDamaged) as error:
                results[asked.table] = TableResult(asked.table, DIFFERENT, str(error))
                continue
            if opened.latest is not None and opened.latest.shards:
                results[asked.table] = TableResult(asked.table, NOT_VERIFIED, _MERGED, opened.position)
                continue
            options = opened.entry.table.options if opened.entry is not None else options
            if not at and opened.made_by is not None and opened.entry is not None and opened.entry.at_upper:
                run_id = opened.made_by.run_id
                runs[run_id] = opened.made_by
            at = at or opened.position
        elif not at and request.lag_seconds < 0:
            raise ConfigurationError(
                "the position of this copy is unknown",
                where=f"{asked.table}, {asked.uri}",
                hint="give the position or time at which it is exact (at), a time after which it was made (since), or "
                "how far it may be behind the source (lag_seconds)",
            )
        members[at, options, run_id].append(asked)
    return [Group(at, options, tuple(copies), runs[run_id]) for (at, options, run_id), copies in members.items()]


@dataclass
class _Verification:
    """The verification of one group."""

    spark: SparkSession
    request: VerifyRequest
    settings: ConnectionSettings
    folder: Storage
    number: int
    group: Group
    meanwhile: Meanwhile

    def __post_init__(self) -> None:
        request = self.request
        self.run = SourceRun(
            self.spark,
            self.settings,
            self.folder,
            request.run_ids[self.number],
            request.source_conn_id,
            {
                table_name(asked): selection_of(asked.where or None, asked.selected or None)
                for asked in self.group.copies
            },
            self.group.options,
            StepOptions(
                as_of=self.group.as_of,
                standing_slot=request.standing_slot,
                on_table_error="skip",
                # Rows at a later position would not be comparable with the copy.
                on_schema_change="fail",
            ),
        )
        if (made_by := self.group.made_by) is not None:
            self.run.since = CopyOfRun(made_by.run_id, self.group.at, made_by.identity)

    @property
    def leaves_out(self) -> bool:
        """Whether touched keys are left out on both sides."""
        return self.request.leaves_out or self.group.made_by is not None

    def results(self) -> list[TableResult]:
        copies = self.group.copies
        where = f"at {self.group.at}" if self.group.at else "now"
        log(f"verify: {format_count(len(copies), 'table')}, {where}")
        try:
            while True:
                try:
                    return self._results()
                except (ExactnessError, ValueNotRepresentable) as error:
                    if (name := self.run.table_of(error)) is None:
                        return [
                            TableResult(asked.table, NOT_VERIFIED, text_without_hint(error), self.group.at)
                            for asked in copies
                        ]
                    log(f"verify: {name} cannot be verified: {text_without_hint(error)}")
                    self.run.refused[name] = text_without_hint(error)
        finally:
            self.run.remove()

    def _results(self) -> list[TableResult]:
        copies = self.group.copies
        if not self.run.begin():
            return [self._refused(asked) for asked in copies]
        if self.request.lag_seconds > 0:
            self._wait_for_copies()
        opened, results = self._opened()
        drawn = ((str(table_name(one.asked)), self._sample(one)) for one in opened)
        samples = {name: sample for name, sample in drawn if sample is not None}
        rows = self.run.read(samples) if opened else {}
        for one in opened:
            name = str(table_name(one.asked))
            results[one.asked.table] = (
                self._compared(one, rows[name], samples.get(name)) if name in rows else self._refused(one.asked)
            )
        return [results[asked.table] for asked in copies]

    def _refused(self, asked: CopyAsked) -> TableResult:
        why = self.run.refused[str(table_name(asked))]
        return TableResult(asked.table, NOT_VERIFIED, why, self.group.at)

    def _wait_for_copies(self) -> None:
        """Wait until the copies have all changes up to the position of the run."""
        log(f"verify: waiting {self.request.lag_seconds:,} s, until the copies have all changes before this moment")
        until = time.monotonic() + self.request.lag_seconds
        while time.monotonic() < until:
            self.meanwhile()
            time.sleep(min(_WAIT_SECONDS, max(0.0, until - time.monotonic())))

    def _opened(self) -> tuple[list[OpenedCopy], dict[str, TableResult]]:
        """Open the copies before the rows are read: what a copy gets later is not in the window."""
        opened, results = [], {}
        for asked in self.group.copies:
            if str(table_name(asked)) in self.run.refused:
                results[asked.table] = self._refused(asked)
                continue
            try:
                one = open_copy(self.request, asked)
            except (ManifestError, FileDamaged) as error:
                results[asked.table] = TableResult(asked.table, DIFFERENT, str(error), self.group.at)
                continue
            if why := self._unfit(one):
                results[asked.table] = TableResult(asked.table, NOT_VERIFIED, why, self.group.at)
            elif why := self._other_columns(one):
                results[asked.table] = TableResult(asked.table, DIFFERENT, why, self.group.at)
            else:
                opened.append(one)
        return opened, results

    def _unfit(self, one: OpenedCopy) -> str:
        """Return why a copy cannot be verified; empty: it can."""
        table = self._table(one)
        if self.leaves_out and table.needs_one_position:
            return "the table has no key in the log, so rows that were changed meanwhile cannot be left out"
        if one.latest is None:
            return ""
        manifest = self.run.run.manifest
        sink_of(self.request).check_source([copy_name(one.asked)], manifest.source, manifest.initial)
        source = self.run.source
        if not self.request.at:
            mark, of_server = one.latest.history.get("mark", ""), one.latest.source
            trace = Trace(
                parse_position(source.kind, one.position),
                mark if isinstance(mark, str) else "",
                of_server.get("server", ""),
                of_server.get("timeline", ""),
            )
            (finding,) = source.relations(manifest.identity, manifest.initial, [trace])
            if finding.relation is HistoryRelation.OTHER:
                return f"the source no longer has the history of this copy: {finding.why}"
        return ""

    def _table(self, one: OpenedCopy) -> Table:
        return self.run.table(str(table_name(one.asked)))

    def _other_columns(self, one: OpenedCopy) -> str:
        """Return how the columns of a copy of this package differ from those of the source; empty: they do not."""
        own, found = self.run.schema(str(table_name(one.asked))).names, one.schema.names
        if unknown := sorted(set(one.asked.columns) - set(own)):
            raise ConfigurationError(
                f"the table has no column {', '.join(unknown)}",
                where=f"{one.asked.table}, mapping of columns",
                hint=f"use the names at the source: {', '.join(own)}",
            )
        if one.latest is not None and sorted(own) != sorted(found):
            return f"the copy has the columns {', '.join(found)}; the source publishes {', '.join(own)}"
        if missing := [name for name in self._table(one).key if one.asked.columns.get(name, name) not in found]:
            raise ConfigurationError(
                f"the copy has no column for {', '.join(missing)}, which is in the key",
                where=f"{one.asked.table}, {one.label}",
                hint=f"map it to a column of the copy: {', '.join(found)}",
            )
        return ""

    def _sample(self, one: OpenedCopy) -> Sample | None:
        """Return the ranges to compare; None: all rows."""
        name = str(table_name(one.asked))
        if not self.request.ranges or one.stream is not None or not self.run.can_sample(name):
            return None
        column = self._table(one).key[0]
        if not pa.types.is_integer(self.run.schema(name).field(column).type):
            return None
        groups = []
        for piece in one.pieces:
            if (found := piece.groups(one.asked.columns.get(column, column))) is None:
                return None
            groups += found
        ranges = cut(groups, self.request.range_rows)
        return draw(column, ranges, self.request.ranges, self.request.seed, name)

    def _compared(self, one: OpenedCopy, rows: TableRows, sample: Sample | None) -> TableResult:
        schema, table = self.run.schema(str(table_name(one.asked))), self._table(one)
        columns = one.asked.columns
        shown = pa.schema([field for field in schema if columns.get(field.name, field.name) in one.schema.names])
        left_out = rows.touched if self.leaves_out else None
        own = RowsToRead("source", shown, table.key, sample=sample, left_out=left_out)
        left = Side(own, rows.files)
        right = Side(replace(own, label=one.label, columns=columns), one.pieces, one.stream)
        result = TableResult(
            one.asked.table,
            SAME,
            position=self.group.at or self.run.run.position_text,
            keys_left_out=len(left_out.hashes()) if left_out is not None else 0,
            ranges=(len(sample.ranges), sample.total) if sample is not None else (0, 0),
            confidence=sample.confidence if sample is not None else "",
            columns_left_out=tuple(name for name in schema.names if name not in shown.names),
        )
        return with_comparison(
            result,
            lambda: compare(self.spark, left, right, self.request.shown, self.meanwhile),
            lambda error: self._excuse(one, error),
        )

    def _excuse(self, one: OpenedCopy, error: FileDamaged) -> str:
        """Return why a file that cannot be read is no fault of the copy; empty: it is.

        :raises StorageUnavailable: the file belongs to this verification.
        """
        if error.where.startswith(f"{self.folder.uri}/"):
            raise StorageUnavailable(
                f"a file of this verification is gone: {error.message}",
                where=error.where,
                hint="another attempt of the task has removed it; retry the task",
            ) from error
        if one.latest is None:
            return f"another program may have changed the copy while it was read: {error}"
        head = sink_of(self.request).head(copy_name(one.asked))
        if head is None or head.run_id != one.latest.run_id:
            return f"a newer copy was published, and this one may have been removed, while it was read: {error}"
        return ""


def with_comparison(
    result: TableResult, compared: Callable[[], Comparison], excuse: Callable[[FileDamaged], str] = lambda error: ""
) -> TableResult:
    """Compare two sides, and return the result with what differs.

    :param excuse: returns why a file that cannot be read is no fault of the copy; empty: it is.
    """
    try:
        found = compared()
    except FileDamaged as error:
        if why := excuse(error):
            return replace(result, outcome=NOT_VERIFIED, why=why)
        return replace(result, outcome=DIFFERENT, why="a file cannot be read", damaged=(str(error),))
    differs = found.digests[0] != found.digests[1] or found.rows[0] != found.rows[1] or bool(found.differences)
    return replace(
        result,
        outcome=DIFFERENT if differs else SAME,
        why=_differences_in(found) if differs else "",
        rows=found.rows,
        digests=found.digests,
        differences=found.differences,
        keys_differing=found.keys_differing,
        parts_unsearched=found.parts_unsearched,
    )


def _differences_in(found: Comparison) -> str:
    """Return what differs, in words."""
    more = (
        f"; {format_count(found.parts_unsearched, 'more part')} of the table differ" if found.parts_unsearched else ""
    )
    return f"the rows of {format_count(found.keys_differing, 'key')} differ{more}"
