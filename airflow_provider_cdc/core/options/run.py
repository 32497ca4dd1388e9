"""Every option of a run, each declared once.

A field that is made by `option` is an option: its name, type and default are those of the field, and the rest of the
declaration says what it accepts and what it does. All else follows: the arguments of the operators, the params of the
DAGs that come with the package, the checks and messages of preflight, what the manifest holds, and the table in
``docs/options.md``. Only `SnapshotTaskGroup` spells its arguments out, so that editors complete them, and
``operators/arguments.py``, so that type checkers know them; tests compare them with these.

To add an option, declare it here and use it: in `TableOptions` if it is about how tables are read and published, in
`StepOptions` if steps after preflight need it, and in `RunOptions` otherwise. What a DAG's author decides for all runs
of the DAG is in ``core/options/author.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from airflow_provider_cdc.core.options.declare import (
    AS_OF,
    COLUMNS,
    CONDITIONS,
    CONNECTION,
    COUNT,
    COUNT_OR_NONE,
    FLAG,
    PROPERTIES,
    SECONDS,
    SLOT_NAME,
    TABLE_NAMES,
    URI,
    URI_OR_EMPTY,
    WHOLE_SECONDS,
    Option,
    declared_in,
    made_of,
    one_of,
    option,
)
from airflow_provider_cdc.errors import PreflightError, Problem

FOLDED = "Reading and publishing"
"""The section of a form with what few runs need. Airflow's own beside it is called "Advanced Options"."""

CONSISTENCIES = ("auto", "watermark", "lock", "exported", "again")
UNREPRESENTABLE = ("error", "null", "string")
ON_TABLE_ERROR = ("fail", "skip")
FULL, CHANGES = "full", "changes"
REFRESHES = (FULL, "auto", CHANGES)
PRESENT, FAIL = "present", "fail"


@dataclass(frozen=True)
class TableOptions:
    """How tables are read and published.

    ``unrepresentable``, where it is ``null``, stops the run where the value is part of what tells rows apart: in a key
    column, and in every column of a keyless table. There ``string`` stops it for bytes that are no character.
    """

    consistency: str = option(
        "auto",
        accepts=one_of(
            CONSISTENCIES,
            (
                "auto: what suits each table",
                "watermark: no lock; needs a key",
                "lock: a lock of milliseconds, then one transaction (MySQL)",
                "exported: all in one exported snapshot (PostgreSQL)",
                "again: touched rows are read again (PostgreSQL)",
            ),
            features=("lock", "exported", "again"),
        ),
        title="Consistency",
        section=FOLDED,
        help="How the tables are read. `watermark`: no lock, chunks at any time, needs a key. `lock` (MySQL): a lock "
        "of milliseconds, then one transaction. `exported` (PostgreSQL): all tasks read in one exported snapshot. "
        "`again` (PostgreSQL): as `watermark`, but needs no `REPLICA IDENTITY FULL`: rows that were touched are read "
        "again in one short snapshot, at which the whole run is exact. `auto`: `watermark`, and `lock` or `exported` "
        "for tables without a key; on PostgreSQL, `again` if a table has not `REPLICA IDENTITY FULL`.",
        example="auto, unless you know better",
    )
    unrepresentable: str = option(
        "error",
        accepts=one_of(
            UNREPRESENTABLE,
            ("error: stop the run", "null: publish null, and count them", "string: publish such columns as text"),
        ),
        title="Values without an Arrow type",
        section=FOLDED,
        help="What becomes of values that no Arrow type holds, such as `0000-00-00`, `infinity`, or bytes that are no "
        "character: `error` stops if one survives, `null` publishes null and counts them, `string` publishes such "
        "columns as text, and such bytes as `0x…`.",
        example="error, unless you know better",
    )


AS_DECLARED = TableOptions()
"""What holds for tables of which nothing else was asked."""


@dataclass(frozen=True)
class LockPolicy:
    """How the short lock is taken: each try waits at most ``wait_seconds``, after which everybody else goes first.

    ``through_read`` keeps the lock until the table is read, for servers whose read views need that.
    ``slot_wait_seconds`` is how long a replication slot may wait for transactions that write: nobody waits for it.
    """

    wait_seconds: int = option(
        5,
        name="lock_wait_seconds",
        accepts=WHOLE_SECONDS,
        help="Seconds that one try to take a lock may keep others waiting.",
        example="a number such as 5",
    )
    tries: int = option(
        12,
        name="lock_tries",
        accepts=COUNT,
        help="How often a lock is tried.",
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
        help="Keep the lock until the table is read, for servers whose read views need that.",
        example="true or false",
    )
    slot_wait_seconds: int = option(
        600,
        accepts=WHOLE_SECONDS,
        feature="slots",
        help="Seconds that the slot may wait for transactions that write; nobody waits for it.",
        example="a number such as 600",
    )


@dataclass(frozen=True)
class StepOptions:
    """What the steps after preflight go by. The manifest holds it."""

    chunk_rows: int = option(
        100_000,
        accepts=COUNT,
        title="Rows per chunk",
        section=FOLDED,
        help="Rows that one statement reads, about; raised where a table would have more than 10,000 chunks, or a run "
        "more than 50,000.",
        example="a number such as 100000",
    )
    chunk_pause: float = option(
        0.0,
        accepts=SECONDS,
        help="Seconds that a reader rests after each chunk, to spare the source; below 900.",
        example="a number such as 0 or 0.5",
    )
    as_of: str = option(
        "",
        accepts=AS_OF,
        title="As of",
        help="The point at which the copy is exact: a time with its zone (`2026-01-31T00:00:00Z`), a date (its "
        "beginning, 00:00 UTC), a GTID set or an LSN, as far back as the log reaches (PostgreSQL: that of the "
        "`standing_slot`); empty: now. A time means all that was committed up to it.",
        example="a time such as 2026-01-31T00:00:00Z",
    )
    as_of_wait_seconds: int = option(
        600,
        accepts=WHOLE_SECONDS,
        help="Seconds to wait for the first commit after the time in `as_of`: before it, what is committed next may "
        "still belong to that time.",
        example="a number such as 600",
    )
    standing_slot: str = option(
        "",
        accepts=SLOT_NAME,
        feature="standing_slot",
        title="Standing slot",
        section=FOLDED,
        help="A name, such as `nightly`: the server then keeps a replication slot of that name from run to run, and "
        "with it the log that `as_of` goes back over and that `refresh` rolls copies forward by; empty: none. Runs "
        "that give the same name share it. It costs the server disk, and stays until someone drops it.",
        example="a name such as nightly",
    )
    standing_slot_hours: int = option(
        48,
        accepts=COUNT,
        feature="standing_slot",
        help="Hours of the past that the standing slot keeps: when a run is published, it gives up what is older, but "
        "not the log since the last copies that `refresh` is to roll forward (for a week at most).",
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
        help="`full`: all tables are read. `auto`: the last copy of a table is rolled forward by what the log says was "
        "changed since, at the cost of the changes, where that is exact; other tables are read in full, and the "
        "log of `preflight` says why. `changes`: as `auto`, but a table that would have to be read in full stops "
        "the run. On PostgreSQL it needs a `standing_slot`.",
        example="full, auto or changes",
    )
    changes: bool = option(
        False,
        accepts=FLAG,
        title="Publish the changes",
        section=FOLDED,
        help="Beside each copy that is rolled forward, publish every row change between the last copy and this one, in "
        "commit order. It needs `refresh`, and stops the run where the last copy of a table cannot be rolled forward; "
        "a table without a copy begins with its first one. On PostgreSQL it needs `REPLICA IDENTITY FULL`.",
        example="true or false",
    )
    keep: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Copies to keep",
        section=FOLDED,
        help="How many copies of each table stay: when a run has published the latest one, it removes those that are "
        "older than the newest so many of its tables, whichever run made them; 0: all of them stay.",
        example="a number such as 7",
    )
    keep_days: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Days that copies stay",
        section=FOLDED,
        help="Beside `keep`, which has to be given, too: a copy that was published less than so many days ago stays, "
        "however many newer ones there are; 0: only their number counts.",
        example="a number such as 30",
    )
    lock: LockPolicy = field(default_factory=LockPolicy)
    keep_slot: bool = option(
        False,
        accepts=FLAG,
        feature="slots",
        title="Keep the slot",
        section=FOLDED,
        help="Leave the publication and the slot there when the run is published, to stream on from `initial_lsn`. "
        "You then have to drop them.",
        example="true or false",
    )
    on_table_error: str = option(
        "fail",
        accepts=one_of(ON_TABLE_ERROR, ("fail: stop the run", "skip: leave them out, and say so")),
        title="Tables that cannot be copied",
        section=FOLDED,
        help="What becomes of tables that cannot be copied (no transactions, no key where one is needed, no `REPLICA "
        "IDENTITY FULL`, a type or a value without an Arrow type): `fail` stops the run, `skip` leaves them out, says "
        "so in the logs, and lists them with the reasons in the XCom `skipped`.",
        example="fail or skip",
    )

    @property
    def skips(self) -> bool:
        """Whether a table that cannot be copied is left out, and does not stop the run."""
        return self.on_table_error == "skip"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What one run is asked to do. `checked` makes one."""

    source_conn_id: str = option(
        accepts=CONNECTION,
        title="Source",
        help="Connection to the source, of type `cdc_mysql`, `cdc_postgres`, `mysql` or `postgres`.",
        example="text such as cdc_mysql",
    )
    tables: Sequence[str] = option(
        accepts=TABLE_NAMES,
        title="Tables",
        help="The tables as `schema.table`; `*` matches any run of characters in either part, and a pattern that "
        "begins with `!` leaves out what those before it named (`!shop._*_gho`). A part in double quotes is taken "
        "literally, dots and stars included.",
        example='a list such as ["shop.orders", "shop.order_*"]',
    )
    target: str = option(
        accepts=URI,
        title="Target",
        secret=True,
        help="The folder to publish in, as an absolute path or a URI (`file:///…`, `s3://…`, `gs://…`, `abfs://…`, "
        "`hdfs://…`) without query, fragment or user info; Airflow and Spark must both reach it. `{source}` in it "
        "stands for `source_conn_id`: a folder has the copies of one source.",
        example="a URI such as file:///data/lake or s3://bucket/lake",
    )
    where: Mapping[str, str] | None = option(
        None,
        accepts=CONDITIONS,
        title="Rows (where)",
        help="Which rows of a table are copied, by the table's name or a pattern: those for which the condition holds "
        "at the run's position (`{\"shop.orders\": \"status = 'open' and created >= '2026-01-01'\"}`). It is a part of "
        "SQL in which text compares by code point. Such copies have a folder of their own.",
        example='an object such as {"shop.orders": "created >= \'2026-01-01\'"}',
    )
    columns: Mapping[str, Sequence[str]] | None = option(
        None,
        accepts=COLUMNS,
        title="Columns",
        section=FOLDED,
        help="Which columns of a table are published, by the table's name or a pattern, beside those of its key "
        '(`{"shop.orders": ["id", "status"]}`). Such copies have a folder of their own.',
        example='an object such as {"shop.orders": ["id", "status"]}',
    )
    scratch: str = option(
        "",
        accepts=URI_OR_EMPTY,
        title="Scratch",
        section=FOLDED,
        secret=True,
        help="The folder for the work of runs in progress and for their records, written as `target` is; empty: "
        "`_runs` in the target. It may lie in another store: files are then copied when they are published. Copies are "
        "rolled forward only by runs with the same one, and `targets` has to allow it, too.",
        example="a URI such as s3://bucket/scratch",
    )
    table: TableOptions = field(default_factory=TableOptions)
    missing_past: str = option(
        PRESENT,
        accepts=one_of(
            (PRESENT, FAIL),
            ("present: copy the present, and say so", "fail: stop the run"),
        ),
        help="What becomes of a run that cannot be exact at the end of its interval, which the DAG `nightly` supplies "
        "by itself: `present` copies the present, and says so in the logs, in `_latest.json`, in the event and in the "
        "report (`missed_as_of`); `fail` stops the run. Runs of Airflow's Backfill are always refused, and so is an "
        "`as_of` that somebody wrote.",
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
        help="Spark properties. They show in the process list: no secrets.",
        example='an object such as {"spark.executor.cores": "2"}',
    )
    shared_app_seconds: float = option(
        60.0,
        accepts=SECONDS,
        help="The Spark application of a step goes on with the next ones as long as it is younger than this: a small "
        "run then starts one, not three. 0: each step has its own.",
        example="a number such as 60",
    )
    steps: StepOptions = field(default_factory=StepOptions)
    plan_only: bool = option(
        False,
        accepts=FLAG,
        title="Show the plan only",
        help="Check everything, show what a run would do and about how long it would take, and copy nothing: the tasks "
        "after `preflight` are skipped.",
        example="true or false",
    )


@cache
def declared(kind: type[Any] = RunOptions) -> tuple[Option, ...]:
    """The options that ``kind``, a class of options, consists of, in their order."""
    return tuple(declared_in(kind))


def checked(values: Mapping[str, Any]) -> RunOptions:
    """The options of a run.

    :param values: by the name of the operator's argument (`Option.argument`); every option is there.
    :raises PreflightError: naming every option whose value is not what it should be.
    """
    problems = [problem for one in declared() if (problem := one.check(values[one.argument])) is not None]
    if problems:
        raise PreflightError(problems)
    options: RunOptions = made_of(RunOptions, {one.name: one.accepts.plain(values[one.argument]) for one in declared()})
    if options.steps.keep_days and not options.steps.keep:
        what, hint = "no copy is ever removed, for keep is 0", "give keep, too: 1, if only the days are to count"
        raise PreflightError([Problem("parameter keep_days", what, hint)])
    return options
