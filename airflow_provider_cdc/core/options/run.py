"""The options of a run, each declared once.

A field whose value is `option(...)` is an option, with the field's name, type and default. The declaration contains the
values that the option accepts, and describes the effect of the option. The operators' arguments, the params of the
package's DAGs, preflight's checks and messages, the options in the manifest, and the table in ``docs/options.md`` are
derived from the declaration. Only `SnapshotTaskGroup` (for editors) and ``operators/arguments/types.py`` (for type
checkers) list arguments; tests compare them.

To add an option, declare it here: in `TableOptions` if it is about how tables are read and published, in `StepOptions`
if steps after preflight need it, and in `RunOptions` otherwise. `AuthorOptions` has the options that the
DAG's author sets for all runs of the DAG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import msgspec

from airflow_provider_cdc.core.options.declare import (
    AS_OF,
    COLUMNS,
    CONDITIONS,
    CONNECTION,
    COUNT,
    COUNT_OR_NONE,
    FLAG,
    FOLDED,
    GIB,
    PATTERNS,
    PROPERTIES,
    SECONDS,
    SLOT_NAME,
    TABLE_NAMES,
    URI,
    URI_OR_EMPTY,
    WHOLE_SECONDS,
    Accepted,
    Option,
    declared_in,
    made_of,
    one_of,
    option,
)
from airflow_provider_cdc.core.options.feeds import FeedOptions
from airflow_provider_cdc.core.options.lake import LakeOptions, MergeOptions
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import PreflightError, Problem

# The options of the short lock.


@dataclass(frozen=True)
class LockPolicy:
    """Settings for the short lock. Each try waits at most ``wait_seconds`` for the lock. After a failed try, the
    sessions that wait behind it go first.

    ``through_read`` holds the lock until the table is read, because some servers' read views need that.
    ``slot_wait_seconds`` is how long slot creation may wait for open write transactions; it blocks no other session.
    """

    wait_seconds: int = option(
        5,
        name="lock_wait_seconds",
        accepts=WHOLE_SECONDS,
        help="Seconds for which one attempt to take a lock may block other sessions.",
        example="a number such as 5",
    )
    tries: int = option(
        12,
        name="lock_tries",
        accepts=COUNT,
        help="Number of times that a run tries to take a lock.",
        example="a number such as 12",
    )
    pause_seconds: float = option(
        2.0,
        name="lock_pause_seconds",
        accepts=SECONDS,
        help="Seconds between two tries.",
        example="a number such as 2",
    )
    through_read: bool = option(
        False,
        name="lock_through_read",
        accepts=FLAG,
        feature="lock_through_read",
        help="Hold the lock until the table is read. Some servers need this for a consistent read view.",
        example="true or false",
    )
    slot_wait_seconds: int = option(
        600,
        accepts=WHOLE_SECONDS,
        feature="slots",
        help="Seconds to wait for open write transactions at slot creation. The wait does not block other sessions.",
        example="a number such as 600",
    )


# Options of scrubbing: how often runs read unchanged files of copies again, to find damage.


@dataclass(frozen=True)
class ScrubOptions:
    """How often a run reads unchanged files of the last copies again, and how many of them."""

    scrub_days: int = option(
        7,
        accepts=COUNT_OR_NONE,
        title="Days between checks of a file",
        section=FOLDED,
        help="A copy that is rolled forward takes over unchanged files from the last copy. Within this number of days, "
        "runs read each of these files once, and compare it with its checksum. A damaged file is reported, and its "
        "table is then read in full. 0: unchanged files are not read.",
        example="a number such as 7",
    )
    scrub_gib: float = option(
        0.0,
        accepts=GIB,
        title="GiB to check per run",
        section=FOLDED,
        help="The most GiB of unchanged files that a run reads to check them; the files that have been due the longest "
        "come first. 0: all files that are due.",
        example="a number such as 50",
    )


# The options that limit the load of a run on its source. An operator can change these limits while the run works.


_Threshold = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
THRESHOLDS = Accepted(
    "an object with a threshold, a number of at least 0, for each signal or SELECT; or null",
    dict[Annotated[str, msgspec.Meta(pattern=r"\S")], _Threshold] | None,
    {"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": 0}},
    lambda value: {str(name): float(threshold) for name, threshold in (value or {}).items()},
)


@dataclass(frozen=True)
class LimitOptions:
    """The limits with which a run begins."""

    max_reads: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Concurrent reads",
        section=FOLDED,
        help="Maximum number of tasks that read the source at the same time. 0: as many as Spark has slots. It can be "
        "changed while the run works.",
        example="a number such as 2",
    )
    max_rows_per_second: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Rows per second",
        section=FOLDED,
        help="Maximum number of rows that all tasks together read from the tables per second, on average. A task "
        "pauses between two chunks, so the chunks of the run are smaller with this option. 0: no limit. It can be "
        "changed while the run works.",
        example="a number such as 50000",
    )
    governor: Mapping[str, float] | None = option(
        None,
        accepts=THRESHOLDS,
        help="Numbers of the source to watch, each with a threshold. While a number is above its threshold, the run "
        "reads more and more slowly, and then pauses. The names are `threads_running`, `replica_lag_seconds`, "
        "`history_list_length` (MySQL) and `oldest_xmin_age` (PostgreSQL). A key that begins with `SELECT` is a query "
        "that returns one number.",
        example='an object such as {"threads_running": 40, "SELECT seconds_behind FROM ops.heartbeat": 5}',
    )

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds of the governor, by signal."""
        return dict(self.governor or {})

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


def chunk_rows_within(limits: LimitOptions, chunk_rows: int) -> int:
    """Return the number of rows per chunk with which a limit of rows per second is kept without long pauses."""
    if not limits.max_rows_per_second:
        return chunk_rows
    return min(chunk_rows, max(FEWEST_ROWS, limits.max_rows_per_second * PACED_SECONDS))


FEWEST_ROWS = 100
"""The least number of rows per chunk to which a limit of rows per second leads."""
PACED_SECONDS = 2
"""A chunk has about as many rows as the limit allows in this number of seconds."""


# The options for the log that a run needs. `core.options.run.StepOptions` includes them.


AUTO, OFF = "auto", "off"
STOP, WARN = "stop", "warn"


@dataclass(frozen=True)
class LogOptions:
    """How a run reads the log, and what it does if the source will not keep the log for long enough."""

    spool: str = option(
        AUTO,
        accepts=one_of((AUTO, OFF), ("auto: read the log beside the tables", "off: read the log at the end")),
        help="Whether the run reads the log in pieces while it reads the tables. `auto`: it does, if it takes longer "
        "than 30 seconds and if the way in which the tables are read allows it. The source then need not keep the log "
        "until the reads end, and the run ends sooner. `off`: the run reads the log after the tables.",
        example="auto or off",
    )
    on_short_log: str = option(
        STOP,
        accepts=one_of((STOP, WARN), ("stop: stop the run early", "warn: only warn, until the log is gone")),
        help="What a run does if the source will remove the log before the run has read it, according to the source's "
        "settings, the growth of the log and the progress of the run. The run warns in any case. `stop` stops the run "
        "if the log would be gone in less than a third of the time that the run still needs, and 30 minutes of "
        "warnings have not changed this. `warn` lets the run go on until the log is gone.",
        example="stop or warn",
    )


# The options for runs that share tables of a target.


ALLOW, WAIT, REFUSE = "allow", "wait", "refuse"


@dataclass(frozen=True)
class ConcurrencyOptions:
    """What a run does if another run of the same tables and the same target is under way."""

    concurrent_runs: str = option(
        ALLOW,
        accepts=one_of(
            (ALLOW, WAIT, REFUSE),
            (
                "allow: run beside it",
                "wait: wait until it has ended",
                "refuse: stop, and name it",
            ),
        ),
        help="What `preflight` does if another run of the same `target` and `scratch` copies some of the same tables, "
        "and is under way. `allow`: the run works beside it. Both copies are exact, and the one with the later "
        "position becomes the latest one. `wait`: `preflight` waits until the other run is published or has failed. "
        "`refuse`: the run stops, and names the other run. A run that died holds up no other run.",
        example="allow, wait or refuse",
    )
    concurrent_wait_seconds: float = option(
        0.0,
        accepts=SECONDS,
        help="With `concurrent_runs` = `wait`: seconds after which the run stops waiting, and is refused. 0: it waits "
        "for as long as the `execution_timeout` of `preflight` allows.",
        example="a number such as 3600",
    )


CONSISTENCIES = ("auto", "watermark", "lock", "exported", "again")
UNREPRESENTABLE = ("error", "null", "string")
TEXT, LIST = "text", "list"
ON_TABLE_ERROR = ("fail", "skip")
FULL, CHANGES = "full", "changes"
REFRESHES = (FULL, "auto", CHANGES)
PRESENT, FAIL = "present", "fail"
RESTART_TABLE, GIVE_UP_PAST = "restart_table", "give_up_past"
ON_SCHEMA_CHANGE = (RESTART_TABLE, GIVE_UP_PAST, FAIL)


@dataclass(frozen=True)
class TableOptions:
    """The options for how tables are read and published.

    Some columns identify rows: key columns, and all columns of a table without a key. In these columns, the option
    ``unrepresentable`` has another effect: with ``null``, an unrepresentable value stops the run, and with ``string``,
    bytes that are not valid characters stop the run.
    """

    consistency: str = option(
        "auto",
        accepts=one_of(
            CONSISTENCIES,
            (
                "auto: chosen for each table",
                "watermark: no lock; needs a key",
                "lock: a lock of milliseconds, then one transaction (MySQL)",
                "exported: all in one exported snapshot (PostgreSQL)",
                "again: touched rows are read again (PostgreSQL)",
            ),
            features=("lock", "exported", "again"),
        ),
        title="Consistency",
        section=FOLDED,
        help="How the tables are read. `watermark`: the tables are read in chunks at different times, without a lock, "
        "and need a key. `lock` (MySQL): the tables are locked for milliseconds, then read in one transaction. "
        "`exported` (PostgreSQL): all tasks read in one exported snapshot. `again` (PostgreSQL): like `watermark`, for "
        "tables without `REPLICA IDENTITY FULL`. At the end, the run reads touched rows again in one short snapshot, "
        "and is exact at this snapshot. `auto`: `watermark` for tables with a key, `lock` or `exported` for tables "
        "without a key. On PostgreSQL, `auto` means `again` if a table lacks `REPLICA IDENTITY FULL`.",
        example="auto (recommended)",
    )
    unrepresentable: str = option(
        "error",
        accepts=one_of(
            UNREPRESENTABLE,
            ("error: stop the run", "null: publish null, and count them", "string: publish such columns as text"),
        ),
        title="Values without an Arrow type",
        section=FOLDED,
        help="How to treat values that no Arrow type holds, such as `0000-00-00`, `infinity`, or bytes that are not a "
        "valid character. `error` stops the run if such a value is in the copy. `null` publishes null and counts the "
        "values. `string` publishes the columns of such values as text, and invalid bytes as `0x…`.",
        example="error (recommended)",
    )
    arrays: str = option(
        TEXT,
        accepts=one_of((TEXT, LIST), ("text: as the text of the array", "list: as lists")),
        feature="arrays",
        help="How to publish arrays whose elements have an Arrow type. `text`: as the server prints them. `list`: as "
        "lists, except in columns of the key and in tables without a key. A list has no dimensions and no bounds: "
        "`unrepresentable` decides about an array of several dimensions, an array whose lower bound is not 1, and an "
        "array with an element that no Arrow type holds.",
        example="text or list",
    )


AS_DECLARED = TableOptions()
"""The default options of a table."""


@dataclass(frozen=True)
class StepOptions:
    """Options that the steps after preflight need. The manifest stores these options."""

    chunk_rows: int = option(
        100_000,
        accepts=COUNT,
        title="Rows per chunk",
        section=FOLDED,
        help="Approximate number of rows that one statement reads. The number is raised if a table would have more "
        "than 10,000 chunks, or a run more than 50,000.",
        example="a number such as 100000",
    )
    chunk_pause: float = option(
        0.0,
        accepts=SECONDS,
        help="Seconds that a reader pauses after each chunk, to reduce the load on the source. Must be below 900.",
        example="a number such as 0 or 0.5",
    )
    as_of: str = option(
        "",
        accepts=AS_OF,
        title="As of",
        help="The time or position at which the copies are exact: a time with its zone (`2026-01-31T00:00:00Z`), a "
        "date (00:00 UTC of that day), a GTID set or an LSN. Empty: now. The source must still have the log since then "
        "(PostgreSQL: in the `standing_slot`). Commits at that time are included.",
        example="a time such as 2026-01-31T00:00:00Z",
    )
    as_of_wait_seconds: int = option(
        600,
        accepts=WHOLE_SECONDS,
        deprecated=True,
        help="Deprecated, without effect: a run no longer waits for a commit after the time in `as_of`.",
        example="a number such as 600",
    )
    standing_slot: str = option(
        "",
        accepts=SLOT_NAME,
        feature="standing_slot",
        title="Standing slot",
        section=FOLDED,
        help="A name, such as `nightly`, for a replication slot that stays on the server from run to run. The slot "
        "retains the log that `as_of` and `refresh` need. Empty: no standing slot. Runs with the same name share the "
        "slot. The slot uses disk space on the server, and stays until you drop it.",
        example="a name such as nightly",
    )
    standing_slot_hours: int = option(
        48,
        accepts=COUNT,
        feature="standing_slot",
        help="Hours of log that the standing slot retains. After publishing, a run releases older log. If `refresh` "
        "needs older log to roll the last copies forward, this log is retained longer, for a week at most.",
        example="a number such as 48",
    )
    refresh: str = option(
        "full",
        accepts=one_of(
            REFRESHES,
            (
                "full: read all tables",
                "auto: roll the last copies forward where that is exact",
                "changes: roll the last copies forward, or stop",
            ),
        ),
        title="Refresh",
        help="`full`: all tables are read. `auto`: the run makes the new copy of a table from its last copy and the "
        "changes in the source's log, if the result is exact. Other tables are read in full, and the task log of "
        "`preflight` gives the reason. `changes`: like `auto`, but the run stops if a table would have to be read in "
        "full. On PostgreSQL, `auto` and `changes` need a `standing_slot`.",
        example="full, auto or changes",
    )
    changes: bool = option(
        False,
        accepts=FLAG,
        title="Publish the changes",
        section=FOLDED,
        help="With each copy that is rolled forward, also publish all row changes since the last copy, in commit "
        "order. Requires `refresh`. `on_feed_gap` is about tables whose last copy cannot be rolled forward. If a table "
        "has no copy, its changes begin at the first copy. PostgreSQL tables need `REPLICA IDENTITY FULL`.",
        example="true or false",
    )
    feeds: FeedOptions = field(default_factory=FeedOptions)
    keep: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Copies to keep",
        section=FOLDED,
        help="Number of copies to keep of each table. After a run has published its copies, it removes older copies of "
        "the same tables, even if another run published these copies. 0 keeps all copies.",
        example="a number such as 7",
    )
    keep_days: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Days that copies stay",
        section=FOLDED,
        help="Copies that were published within this number of days are kept, even if there are more than `keep` "
        "copies. Requires `keep`. 0: only the number of copies counts.",
        example="a number such as 30",
    )
    limits: LimitOptions = field(default_factory=LimitOptions)
    scrub: ScrubOptions = field(default_factory=ScrubOptions)
    lock: LockPolicy = field(default_factory=LockPolicy)
    keep_slot: bool = option(
        False,
        accepts=FLAG,
        feature="slots",
        title="Keep the slot",
        section=FOLDED,
        help="Keep the publication and the slot after the run is published, so that another program can stream the "
        "changes from `initial_lsn` on. You must then drop the publication and the slot yourself.",
        example="true or false",
    )
    lake: LakeOptions = field(default_factory=LakeOptions)
    on_table_error: str = option(
        "fail",
        accepts=one_of(ON_TABLE_ERROR, ("fail: stop the run", "skip: leave them out, and report them")),
        title="Tables that cannot be copied",
        section=FOLDED,
        help="How to treat tables that cannot be copied. A table may lack transactions, a key or `REPLICA IDENTITY "
        "FULL`, or may have a type or a value that no Arrow type holds. `fail` stops the run. `skip` leaves these "
        "tables out, names them in the logs, and lists them with the reasons in the XCom `skipped`.",
        example="fail or skip",
    )
    on_schema_change: str = option(
        RESTART_TABLE,
        accepts=one_of(
            ON_SCHEMA_CHANGE,
            (
                "restart_table: read the altered table again, and move the run's position",
                "give_up_past: the same, and a nightly run then copies the present",
                "fail: stop the run",
            ),
        ),
        title="Tables that are altered during the run",
        section=FOLDED,
        help="What a run does if a table is altered while the run works, and the result could be wrong. "
        "`restart_table`: the run fixes a later position and reads at most the altered table again. The other tables "
        "are brought to the new position by the log. All tables are exact at the new position, which is in the XComs "
        "of `consolidate`, in the report and in the copies. A run with `as_of` cannot move its "
        "position: `on_table_error` says whether it stops or leaves the altered table out. `give_up_past`: like "
        "`restart_table`, but if the DAG `nightly` supplied `as_of`, the run moves to the present, and "
        "reports that it missed the requested time. `fail` stops the run.",
        example="restart_table or fail",
    )
    log: LogOptions = field(default_factory=LogOptions)
    merging: MergeOptions = field(default_factory=MergeOptions)

    @property
    def skips(self) -> bool:
        """Return whether the run leaves out a table that cannot be copied, instead of stopping."""
        return self.on_table_error == "skip"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All options of one run. `checked` creates it."""

    source_conn_id: str = option(
        accepts=CONNECTION,
        title="Source",
        help="Connection to the source, of type `cdc_mysql`, `cdc_postgres`, `mysql` or `postgres`.",
        example="text such as cdc_mysql",
    )
    tables: Sequence[str] = option(
        accepts=TABLE_NAMES,
        title="Tables",
        help="The tables as `schema.table`. `*` matches any run of characters in either part. A pattern that begins "
        "with `!` excludes tables that earlier patterns matched (`!shop._*_gho`). A part in double quotes is taken "
        "literally, including dots and stars.",
        example='a list such as ["shop.orders", "shop.order_*"]',
    )
    target: str = option(
        accepts=URI,
        title="Target",
        secret=True,
        help="The folder to publish in, as an absolute path or a URI (`file:///…`, `s3://…`, `gs://…`, `abfs://…`, "
        "`hdfs://…`) without query, fragment or user info. Airflow and Spark must both reach it. `{source}` in the "
        "path stands for `source_conn_id`, because a folder can hold the copies of only one source.",
        example="a URI such as file:///data/lake or s3://bucket/lake",
    )
    where: Mapping[str, str] | None = option(
        None,
        accepts=CONDITIONS,
        title="Rows (where)",
        help='Conditions by table name or pattern (`{"shop.orders": "status = \'open\' and created >= '
        "'2026-01-01'\"}`). Only rows that fulfil the condition at the run's position are copied. The syntax is "
        "a subset of SQL. Text is compared by code point. Copies with a condition are in a separate folder.",
        example='an object such as {"shop.orders": "created >= \'2026-01-01\'"}',
    )
    columns: Mapping[str, Sequence[str]] | None = option(
        None,
        accepts=COLUMNS,
        title="Columns",
        section=FOLDED,
        help='The columns to publish, by table name or pattern (`{"shop.orders": ["id", "status"]}`). The key columns '
        "are always published. The copies of a table with selected columns are in a separate folder.",
        example='an object such as {"shop.orders": ["id", "status"]}',
    )
    scratch: str = option(
        "",
        accepts=URI_OR_EMPTY,
        title="Scratch",
        section=FOLDED,
        secret=True,
        help="The folder for the files and records of runs in progress, in the same form as `target`. Empty: `_runs` "
        "in the target. If the folder is in another store, files are copied when they are published. A run can roll "
        "forward only copies of runs with the same `scratch`. `targets` must allow this folder, too.",
        example="a URI such as s3://bucket/scratch",
    )
    table: TableOptions = field(default_factory=TableOptions)
    missing_past: str = option(
        PRESENT,
        accepts=one_of((PRESENT, FAIL), ("present: copy the present, and report it", "fail: stop the run")),
        help="What a run does if its copies cannot be exact at the end of its interval. (The DAG `nightly` supplies "
        "this end as `as_of`.) `present` copies the current state, and reports this in the logs, in `_latest.json`, in "
        "the event and in the report (`missed_as_of`). `fail` stops the run. With `present` and `on_table_error` = "
        "`skip`, only tables that can never be copied as of a past time are left out. Runs of an Airflow backfill and "
        "runs with an explicit `as_of` always stop.",
        example="present or fail",
    )
    spark_conn_id: str = option(
        "spark_default",
        accepts=CONNECTION,
        title="Spark",
        section=FOLDED,
        help="Connection to Spark: local, standalone, or any cluster in client mode.",
        example="text such as spark_default",
    )
    spark_conf: Mapping[str, Any] | None = option(
        None,
        argument="conf",
        accepts=PROPERTIES,
        secret=True,
        help="Spark properties. They are visible in the process list: do not put secrets there.",
        example='an object such as {"spark.executor.cores": "2"}',
    )
    shared_app_seconds: float = option(
        60.0,
        accepts=SECONDS,
        help="Run the next step in the same Spark application if the application has run for less than this number of "
        "seconds. A small run thus needs one application instead of three. 0: steps do not share applications.",
        example="a number such as 60",
    )
    steps: StepOptions = field(default_factory=StepOptions)
    concurrency: ConcurrencyOptions = field(default_factory=ConcurrencyOptions)
    plan_only: bool = option(
        False,
        accepts=FLAG,
        title="Show the plan only",
        help="Check everything, and show what a run would do and its approximate duration. Nothing is copied. The "
        "tasks after `preflight` are skipped.",
        example="true or false",
    )


@cache
def declared(kind: type[Any] = RunOptions) -> tuple[Option, ...]:
    """Return the options that ``kind``, an options class, declares, in order."""
    return tuple(declared_in(kind))


def checked(values: Mapping[str, Any]) -> RunOptions:
    """Check the options of a run, and return them.

    :param values: by the name of the operator's argument (`Option.argument`); every option must be present.
    :raises PreflightError: names every option whose value is not accepted.
    """
    problems = [problem for one in declared() if (problem := one.check(values[one.argument])) is not None]
    if problems:
        raise PreflightError(problems)
    options: RunOptions = made_of(RunOptions, {one.name: one.accepts.plain(values[one.argument]) for one in declared()})
    if options.steps.keep_days and not options.steps.keep:
        what, hint = "no copy is ever removed, because keep is 0", "give keep, too: 1 if only the days should count"
        raise PreflightError([Problem("parameter keep_days", what, hint)])
    return options


# Options that only the DAG's author can set. A DAG run cannot override them.


@dataclass(frozen=True)
class AuthorOptions:
    """The options that limit the sources and targets of a DAG's runs, and that say how strictly the conf of a run is
    checked."""

    source_conn_ids: Sequence[str] | None = option(
        None,
        accepts=PATTERNS,
        fixed=True,
        help="The connections that `source_conn_id` may name. `*` matches any run of characters. None: any connection. "
        "Every user who may trigger the DAG can set its params, but the tasks run with Airflow's rights. So set "
        "`source_conn_ids` and `targets` if `source_conn_id` or `target` is a template.",
        example='a list such as ["cdc_*"]',
    )
    targets: Sequence[str] | None = option(
        None,
        accepts=PATTERNS,
        fixed=True,
        help="The allowed folders for `target` and `scratch`. Their subfolders are allowed, too. Paths are compared "
        "part by part, and `*` matches any run of characters in one part. `*` alone matches any target. None: any "
        "target.",
        example='a list such as ["s3://bucket/lake"]',
    )
    strict_conf: bool = option(
        False,
        accepts=FLAG,
        fixed=True,
        help="Reject a DAG run if its conf has keys that are not params of the DAG. If false, misspelt keys are "
        "ignored.",
        example="true or false",
    )
