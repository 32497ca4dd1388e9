"""The options of a run, as the steps read them.

``core.options.arguments`` declares each option: its default, the values that it accepts, and its description. The
classes here group the checked values. The manifest of a run stores `StepOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.options.arguments import declared, of, options_by_name
from airflow_provider_cdc.core.options.declare import ALLOW as ALLOW
from airflow_provider_cdc.core.options.declare import AUTO as AUTO
from airflow_provider_cdc.core.options.declare import BEGIN_ANEW as BEGIN_ANEW
from airflow_provider_cdc.core.options.declare import CHANGES as CHANGES
from airflow_provider_cdc.core.options.declare import CONSISTENCIES as CONSISTENCIES
from airflow_provider_cdc.core.options.declare import FAIL as FAIL
from airflow_provider_cdc.core.options.declare import FULL as FULL
from airflow_provider_cdc.core.options.declare import GIVE_UP_PAST as GIVE_UP_PAST
from airflow_provider_cdc.core.options.declare import LIST as LIST
from airflow_provider_cdc.core.options.declare import OFF as OFF
from airflow_provider_cdc.core.options.declare import PRESENT as PRESENT
from airflow_provider_cdc.core.options.declare import SKIP, made_of
from airflow_provider_cdc.core.options.declare import STOP as STOP
from airflow_provider_cdc.core.options.declare import TEXT as TEXT
from airflow_provider_cdc.core.options.declare import UNREPRESENTABLE as UNREPRESENTABLE
from airflow_provider_cdc.core.options.declare import WAIT as WAIT
from airflow_provider_cdc.core.options.flat import with_tables
from airflow_provider_cdc.core.options.lake import LakeOptions, MergeOptions
from airflow_provider_cdc.core.options.running import THRESHOLDS as THRESHOLDS
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem

# The options for change feeds. `core.options.run.StepOptions` includes them.


@dataclass(frozen=True)
class FeedOptions:
    """What a run with the option ``changes`` does if the changes of a table cannot be published without a gap."""

    on_feed_gap: str = of("on_feed_gap")

    @property
    def begins_anew(self) -> bool:
        """Whether a table whose changes cannot be published without a gap is copied without changes."""
        return self.on_feed_gap == BEGIN_ANEW


# The options of the short lock.


@dataclass(frozen=True)
class LockPolicy:
    """Settings for the short lock. Each try waits at most ``wait_seconds`` for the lock. After a failed try, the
    sessions that wait behind it go first.

    ``through_read`` holds the lock until the table is read, because some servers' read views need that.
    ``slot_wait_seconds`` is how long slot creation may wait for open write transactions, and ``replica_wait_seconds``
    how long a read may wait for a replica; these waits block no other session.
    """

    wait_seconds: int = of("lock_wait_seconds")
    tries: int = of("lock_tries")
    pause_seconds: float = of("lock_pause_seconds")
    through_read: bool = of("lock_through_read")
    slot_wait_seconds: int = of("slot_wait_seconds")
    replica_wait_seconds: int = of("replica_wait_seconds")


# Options of scrubbing: how often runs read unchanged files of copies again, to find damage.


@dataclass(frozen=True)
class ScrubOptions:
    """How often a run reads unchanged files of the last copies again, and how many of them."""

    scrub_days: int = of("scrub_days")
    scrub_gib: float = of("scrub_gib")


# The options that limit the load of a run on its source. An operator can change these limits while the run works.


FEWEST_ROWS = 100
"""The least number of rows per chunk to which a limit of rows per second leads."""
PACED_SECONDS = 2
"""A chunk has about as many rows as the limit allows in this number of seconds."""


@dataclass(frozen=True)
class LimitOptions:
    """The limits with which a run begins."""

    max_reads: int = of("max_reads")
    max_rows_per_second: int = of("max_rows_per_second")
    governor: Mapping[str, float] | None = of("governor")

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds of the governor, by signal."""
        return dict(self.governor or {})

    def chunk_rows_within(self, chunk_rows: int) -> int:
        """Return the number of rows per chunk with which the limit of rows per second is kept without long pauses."""
        if not self.max_rows_per_second:
            return chunk_rows
        return min(chunk_rows, max(FEWEST_ROWS, self.max_rows_per_second * PACED_SECONDS))

    def text(self) -> str:
        """Return the limits in words; empty: there are none."""
        told = [
            *([f"at most {format_count(self.max_reads, 'read')} at a time"] if self.max_reads else []),
            *(
                [f"at most {format_count(self.max_rows_per_second, 'row')} per second"]
                if self.max_rows_per_second
                else []
            ),
            *(f"slower while {signal} is above {threshold:g}" for signal, threshold in self.thresholds.items()),
        ]
        return ", ".join(told)


# The options for the log that a run needs. `core.options.run.StepOptions` includes them.


@dataclass(frozen=True)
class LogOptions:
    """How a run reads the log, and what it does if the source will not keep the log for long enough."""

    spool: str = of("spool")
    on_short_log: str = of("on_short_log")
    conn_id: str = of("log_conn_id")


# The options for runs that share tables of a target.


@dataclass(frozen=True)
class ConcurrencyOptions:
    """What a run does if another run of the same tables and the same target is under way."""

    concurrent_runs: str = of("concurrent_runs")
    concurrent_wait_seconds: float = of("concurrent_wait_seconds")


@dataclass(frozen=True)
class TableOptions:
    """The options for how tables are read and published.

    Some columns identify rows: key columns, and all columns of a table without a key. In these columns, the option
    ``unrepresentable`` has another effect: with ``null``, an unrepresentable value stops the run, and with ``string``,
    bytes that are not valid characters stop the run.
    """

    consistency: str = of("consistency")
    unrepresentable: str = of("unrepresentable")
    arrays: str = of("arrays")


AS_DECLARED = TableOptions()
"""The default options of a table."""


@dataclass(frozen=True)
class StepOptions:
    """Options that the steps after preflight need. The manifest stores these options."""

    chunk_rows: int = of("chunk_rows")
    chunk_pause: float = of("chunk_pause")
    as_of: str = of("as_of")
    as_of_wait_seconds: int = of("as_of_wait_seconds")
    standing_slot: str = of("standing_slot")
    standing_slot_hours: int = of("standing_slot_hours")
    refresh: str = of("refresh")
    changes: bool = of("changes")
    feeds: FeedOptions = field(default_factory=FeedOptions)
    keep: int = of("keep")
    keep_days: int = of("keep_days")
    limits: LimitOptions = field(default_factory=LimitOptions)
    scrub: ScrubOptions = field(default_factory=ScrubOptions)
    lock: LockPolicy = field(default_factory=LockPolicy)
    keep_slot: bool = of("keep_slot")
    lake: LakeOptions = field(default_factory=LakeOptions)
    on_table_error: str = of("on_table_error")
    on_schema_change: str = of("on_schema_change")
    log: LogOptions = field(default_factory=LogOptions)
    read_conn_ids: Sequence[str] | None = of("read_conn_ids")
    merging: MergeOptions = field(default_factory=MergeOptions)
    partition_key: str = of("partition_key")

    @property
    def skips(self) -> bool:
        """Return whether the run leaves out a table that cannot be copied, instead of stopping."""
        return self.on_table_error == SKIP


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All options of one run. `checked` creates it."""

    source_conn_id: str = of("source_conn_id")
    tables: Sequence[str] = of("tables")
    target: str = of("target")
    where: Mapping[str, str] | None = of("where")
    columns: Mapping[str, Sequence[str]] | None = of("columns")
    scratch: str = of("scratch")
    table: TableOptions = field(default_factory=TableOptions)
    missing_past: str = of("missing_past")
    spark_conn_id: str = of("spark_conn_id")
    spark_conf: Mapping[str, Any] | None = of("spark_conf")
    shared_app_seconds: float = of("shared_app_seconds")
    steps: StepOptions = field(default_factory=StepOptions)
    concurrency: ConcurrencyOptions = field(default_factory=ConcurrencyOptions)
    plan_only: bool = of("plan_only")


def checked(values: Mapping[str, Any]) -> RunOptions:
    """Check the options of a run, and return them.

    :param values: by the name of the operator's attribute (`Option.argument`); every option must be present.
    :raises PreflightError: names every option whose value is not accepted.
    """
    problems = []
    try:
        values = with_tables(values)
    except ConfigurationError as error:
        problems.append(Problem(error.where, error.message, error.hint))
        values = {**values, "tables": ["*.*"]}
    problems += [problem for one in declared() if (problem := one.check(values[one.argument])) is not None]
    if problems:
        raise PreflightError(problems)
    options: RunOptions = made_of(RunOptions, {one.name: one.accepts.plain(values[one.argument]) for one in declared()})
    if options.steps.keep_days and not options.steps.keep:
        what = "no copy is ever removed, because keep (Retention.copies) is 0"
        hint = "give copies, too: 1 if only the days should count"
        raise PreflightError([Problem(options_by_name()["keep_days"].where, what, hint)])
    return options
