"""The objects that say how a run works: `Refresh`, `Read`, `Limits`, `On`, `Spark` and `Allow`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from airflow_provider_cdc.core.options.declare import (
    ALLOW,
    AUTO,
    BEGIN_ANEW,
    CHANGES,
    CONNECTION,
    CONNECTION_OR_EMPTY,
    CONNECTIONS,
    CONSISTENCIES,
    COUNT,
    COUNT_OR_NONE,
    FAIL,
    FLAG,
    FULL,
    GIB,
    GIVE_UP_PAST,
    NEW_COLUMN,
    OFF,
    ORIGIN_IN_KEY,
    PATTERNS,
    PRESENT,
    PROPERTIES,
    REFUSE,
    REPLACE,
    RESTART_TABLE,
    SECONDS,
    SKIP,
    SLOT_NAME,
    STOP,
    UNREPRESENTABLE,
    WAIT,
    WARN,
    WHOLE_SECONDS,
    Accepted,
    Declaration,
    Template,
    declaration,
    one_of,
    option,
)

_Threshold = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
THRESHOLDS = Accepted(
    "an object with a threshold, a number of at least 0, for each signal or SELECT; or null",
    dict[Annotated[str, msgspec.Meta(pattern=r"\S")], _Threshold] | None,
    {"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": 0}},
    lambda value: {str(name): float(threshold) for name, threshold in (value or {}).items()},
)


@declaration
class Refresh(Declaration):
    """Whether tables are read in full, or the last copies are rolled forward with the changes in the log."""

    section = "Refresh"

    mode: str = option(
        default="full",
        name="refresh",
        kw_only=False,
        common=True,
        accepts=one_of(
            (FULL, AUTO, CHANGES),
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
    changes: bool | Template = option(
        default=False,
        accepts=FLAG,
        title="Publish the changes",
        help="With each copy that is rolled forward, also publish all row changes since the last copy, in commit "
        "order. Requires `refresh`. `on_feed_gap` is about tables whose last copy cannot be rolled forward. If a table "
        "has no copy, its changes begin at the first copy. PostgreSQL tables need `REPLICA IDENTITY FULL`.",
        example="true or false",
    )
    standing_slot: str = option(
        default="",
        accepts=SLOT_NAME,
        feature="standing_slot",
        title="Standing slot",
        help="A name, such as `nightly`, for a replication slot that stays on the server from run to run. The slot "
        "retains the log that `as_of` and `refresh` need. Empty: no standing slot. Runs with the same name share the "
        "slot. The slot uses disk space on the server, and stays until you drop it.",
        example="a name such as nightly",
    )
    standing_slot_hours: int | Template = option(
        default=48,
        accepts=COUNT,
        feature="standing_slot",
        help="Hours of log that the standing slot retains. After publishing, a run releases older log. If `refresh` "
        "needs older log to roll the last copies forward, this log is retained longer, for a week at most.",
        example="a number such as 48",
    )
    scrub_days: int | Template = option(
        default=7,
        accepts=COUNT_OR_NONE,
        title="Days between checks of a file",
        help="A copy that is rolled forward takes over unchanged files from the last copy. Within this number of days, "
        "runs read each of these files once, and compare it with its checksum. A damaged file is reported, and its "
        "table is then read in full. 0: unchanged files are not read.",
        example="a number such as 7",
    )
    scrub_gib: float | Template = option(
        default=0.0,
        accepts=GIB,
        title="GiB to check per run",
        help="The most GiB of unchanged files that a run reads to check them; the files that have been due the longest "
        "come first. 0: all files that are due.",
        example="a number such as 50",
    )


@declaration
class Read(Declaration):
    """How the tables and the log of the source are read."""

    section = "Reading"

    consistency: str = option(
        default="auto",
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
        help="How the tables are read. `watermark`: the tables are read in chunks at different times, without a lock, "
        "and need a key. `lock` (MySQL): the tables are locked for milliseconds, then read in one transaction. "
        "`exported` (PostgreSQL): all tasks read in one exported snapshot. `again` (PostgreSQL): like `watermark`, for "
        "tables without `REPLICA IDENTITY FULL`. At the end, the run reads touched rows again in one short snapshot, "
        "and is exact at this snapshot. `auto`: `watermark` for tables with a key, `lock` or `exported` for tables "
        "without a key, and `lock` for tables whose foreign keys cascade (MySQL before 9.6). On "
        "PostgreSQL, `auto` means `again` if a table lacks `REPLICA IDENTITY FULL`.",
        example="auto (recommended)",
    )
    read_conn_ids: Sequence[str] | Template | None = option(
        default=None,
        accepts=CONNECTIONS,
        title="Read from replicas",
        help="Connections to replicas of the source. The rows of tables with a key are read there, in turn; everything "
        "else (the position, the log, the checks, tables that are read at one position) is read from "
        "`source_conn_id`. A replica may lag behind: each read waits until the replica has the run's position. "
        "PostgreSQL: hot standbys. MySQL: the replicas must replicate directly from the source. None: all is read from "
        "the source.",
        example='a list such as ["cdc_replica_1", "cdc_replica_2"]',
    )
    log_conn_id: str = option(
        default="",
        accepts=CONNECTION_OR_EMPTY,
        title="Read the log from a replica",
        help="Connection to a replica of the source, from which the log is read. The position, the end of the log that "
        "the run needs, and the checks come from `source_conn_id`. The replica may lag behind: the run waits until it "
        "has what the run needs. It may be one of `read_conn_ids`. PostgreSQL: a hot standby, of version 16 or later; "
        "`standing_slot` must be empty. Empty: the log is read from the source.",
        example="text such as cdc_replica_1",
    )
    replica_wait_seconds: int | Template = option(
        default=600,
        accepts=WHOLE_SECONDS,
        help="Seconds for which a read waits until a replica (`read_conn_ids`, `log_conn_id`) has what the run needs. "
        "PostgreSQL: after the read, also until the standby has replayed what the source has by then.",
        example="a number such as 600",
    )
    chunk_rows: int | Template = option(
        default=100_000,
        accepts=COUNT,
        title="Rows per chunk",
        help="Approximate number of rows that one statement reads. The number is raised if a table would have more "
        "than 10,000 chunks, or a run more than 50,000.",
        example="a number such as 100000",
    )
    spool: str = option(
        default=AUTO,
        accepts=one_of((AUTO, OFF), ("auto: read the log beside the tables", "off: read the log at the end")),
        help="Whether the run reads the log in pieces while it reads the tables. `auto`: it does, if it takes longer "
        "than 30 seconds and if the way in which the tables are read allows it. The source then need not keep the log "
        "until the reads end, and the run ends sooner. `off`: the run reads the log after the tables.",
        example="auto or off",
    )
    lock_wait_seconds: int | Template = option(
        default=5,
        accepts=WHOLE_SECONDS,
        help="Seconds for which one attempt to take a lock may block other sessions.",
        example="a number such as 5",
    )
    lock_tries: int | Template = option(
        default=12,
        accepts=COUNT,
        help="Number of times that a run tries to take a lock.",
        example="a number such as 12",
    )
    lock_pause_seconds: float | Template = option(
        default=2.0,
        accepts=SECONDS,
        help="Seconds between two tries.",
        example="a number such as 2",
    )
    lock_through_read: bool | Template = option(
        default=False,
        accepts=FLAG,
        feature="lock_through_read",
        help="Hold the lock until the table is read, and not only until the read begins. Writers of the table wait "
        "meanwhile. MySQL does not need this for a consistent read view; servers that only resemble it may.",
        example="true or false",
    )
    slot_wait_seconds: int | Template = option(
        default=600,
        accepts=WHOLE_SECONDS,
        feature="slots",
        help="Seconds to wait for open write transactions at slot creation. The wait does not block other sessions.",
        example="a number such as 600",
    )
    keep_slot: bool | Template = option(
        default=False,
        accepts=FLAG,
        feature="slots",
        title="Keep the slot",
        help="Keep the publication and the slot after the run is published, so that another program can stream the "
        "changes from `initial_lsn` on. You must then drop the publication and the slot yourself.",
        example="true or false",
    )


@declaration
class Limits(Declaration):
    """The limits of the load on the source, with which a run begins. The DAG ``control`` changes most of them while the
    run works."""

    section = "Limits"

    max_reads: int | Template = option(
        default=0,
        accepts=COUNT_OR_NONE,
        title="Concurrent reads",
        help="Maximum number of tasks of the run that read the source at the same time. 0: as many as Spark runs at a "
        "time. It can be changed while the run works.",
        example="a number such as 2",
    )
    max_rows_per_second: int | Template = option(
        default=0,
        accepts=COUNT_OR_NONE,
        title="Rows per second",
        help="Maximum number of rows that all tasks together read from the tables per second, on average. A task "
        "pauses between two chunks, so the chunks of the run are smaller with this option. 0: no limit. It can be "
        "changed while the run works.",
        example="a number such as 50000",
    )
    chunk_pause: float | Template = option(
        default=0.0,
        accepts=SECONDS,
        help="Seconds that a reader pauses after each chunk, to reduce the load on the source. Must be below 900.",
        example="a number such as 0 or 0.5",
    )
    governor: Mapping[str, float | Template] | Template | None = option(
        default=None,
        accepts=THRESHOLDS,
        help="Numbers of the source to watch, each with a threshold. While a number is above its threshold, the run "
        "reads more and more slowly, and then pauses. The names are `threads_running`, `replica_lag_seconds`, "
        "`history_list_length` (MySQL) and `oldest_xmin_age` (PostgreSQL). A key that begins with `SELECT` is a query "
        "that returns one number.",
        example='an object such as {"threads_running": 40, "SELECT seconds_behind FROM ops.heartbeat": 5}',
    )


@declaration
class On(Declaration):
    """What a run does if something is not as usual: a table cannot be copied, a schema changes, a value has no Arrow
    type."""

    section = "Exceptions"

    table_error: str = option(
        default="fail",
        name="on_table_error",
        accepts=one_of((FAIL, SKIP), ("fail: stop the run", "skip: leave them out, and report them")),
        title="Tables that cannot be copied",
        help="How to treat tables that cannot be copied. A table may lack transactions, a key or `REPLICA IDENTITY "
        "FULL`, may have a type or a value that no Arrow type holds, or a changed type that Iceberg refuses. `fail` "
        "stops the run. `skip` leaves these tables out, names them in the logs, and lists them with the reasons in the "
        "XCom `skipped`. The run still stops if a table does not exist, or a selected column, if a privilege is "
        "missing, if a setting of the server is wrong, if another program changed rows of the Iceberg table, or if no "
        "table remains.",
        example="fail or skip",
    )
    schema_change: str = option(
        default=RESTART_TABLE,
        name="on_schema_change",
        accepts=one_of(
            (RESTART_TABLE, GIVE_UP_PAST, FAIL),
            (
                "restart_table: read the altered table again, and move the run's position",
                "give_up_past: the same, and a nightly run then copies the present",
                "fail: stop the run",
            ),
        ),
        title="Tables that are altered during the run",
        help="What a run does if a table is altered while the run works, and the result could be wrong. "
        "`restart_table`: the run fixes a later position and reads at most the altered table again. The other tables "
        "are brought to the new position by the log. All tables are exact at the new position, which is in the XComs "
        "of `consolidate`, in the report and in the copies. A run with `as_of` cannot move its "
        "position: `on_table_error` says whether it stops or leaves the altered table out. `give_up_past`: like "
        "`restart_table`, but if the DAG `nightly` supplied `as_of`, the run moves to the present, and "
        "reports that it missed the requested time. `fail` stops the run.",
        example="restart_table or fail",
    )
    unrepresentable: str = option(
        default="error",
        accepts=one_of(
            UNREPRESENTABLE,
            ("error: stop the run", "null: publish null, and count them", "string: publish such columns as text"),
        ),
        title="Values without an Arrow type",
        help="How to treat values that no Arrow type holds, such as `0000-00-00`, `infinity`, or bytes that are not a "
        "valid character. `error` stops the run if such a value is in the copy. `null` publishes null and counts the "
        "values. `string` publishes the columns of such values as text, and invalid bytes as `0x…`.",
        example="error (recommended)",
    )
    missing_past: str = option(
        default=PRESENT,
        accepts=one_of((PRESENT, FAIL), ("present: copy the present, and report it", "fail: stop the run")),
        help="What a run does if its copies cannot be exact at the end of its interval. (The DAG `nightly` supplies "
        "this end as `as_of`.) `present` copies the current state, and reports this in the logs, in `_latest.json`, in "
        "the event and in the report (`missed_as_of`). `fail` stops the run. With `present` and `on_table_error` = "
        "`skip`, only tables that can never be copied as of a past time are left out. Runs of an Airflow backfill and "
        "runs with an explicit `as_of` always stop.",
        example="present or fail",
    )
    feed_gap: str = option(
        default=FAIL,
        name="on_feed_gap",
        accepts=one_of(
            (FAIL, BEGIN_ANEW),
            (
                "fail: stop the run",
                "begin_anew: publish the copy without changes, and report it",
            ),
        ),
        title="Tables whose changes have a gap",
        help="With `changes`: what a run does if the changes since the last copy of a table cannot be published. "
        "`fail` stops the run. `begin_anew` copies the table as without `changes`. The changes then begin anew at this "
        "copy. The plan, the logs, the report, the event and the copy say so.",
        example="fail or begin_anew",
    )
    short_log: str = option(
        default=STOP,
        name="on_short_log",
        accepts=one_of((STOP, WARN), ("stop: stop the run early", "warn: only warn, until the log is gone")),
        help="What a run does if the source will remove the log before the run has read it, according to the source's "
        "settings, the growth of the log and the progress of the run. The run warns in any case. `stop` stops the run "
        "if the log would be gone in less than a third of the time that the run still needs, and 30 minutes of "
        "warnings have not changed this. `warn` lets the run go on until the log is gone.",
        example="stop or warn",
    )
    collision: str = option(
        default=FAIL,
        name="on_collision",
        accepts=one_of(
            (FAIL, ORIGIN_IN_KEY),
            (
                "fail: do not publish the merged table",
                "origin_in_key: the origin is part of the key",
            ),
        ),
        title="Keys in several shards",
        help="What happens if several shards of a merged table have a row with the same key at the run's position. "
        "`fail`: the merged table fails, and the error names keys and shards. `origin_in_key`: such rows are "
        "different rows, because the origin columns are part of the merged table's key. Requires `origin_columns`.",
        example="fail or origin_in_key",
    )
    type_change: str = option(
        default=STOP,
        name="on_type_change",
        accepts=one_of(
            (STOP, NEW_COLUMN),
            ("stop: stop the run", "new_column: give such a column a new Iceberg column of its name"),
        ),
        help="How to treat a column whose type changed at the source, if Iceberg cannot widen the column to the new "
        "type (`int` to `text`): `stop` stops the run before it reads a row, or leaves the table out "
        "(`on_table_error` = `skip`); `new_column` drops the Iceberg column and "
        "adds another one with the same name and the new type. Older snapshots keep the old column with its values.",
        example="stop or new_column",
    )
    foreign_commit: str = option(
        default=STOP,
        name="on_foreign_commit",
        accepts=one_of(
            (STOP, REPLACE),
            ("stop: stop the run", "replace: publish the whole copy over it"),
        ),
        help="How to treat an Iceberg table whose rows another program changed since the last copy: `stop` stops the "
        "run; `replace` reads the table in full, and publishes the whole copy in place of all rows. The copy never has "
        "rows of both.",
        example="stop or replace",
    )
    concurrent_runs: str = option(
        default=ALLOW,
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
    concurrent_wait_seconds: float | Template = option(
        default=0.0,
        accepts=SECONDS,
        help="With `concurrent_runs` = `wait`: seconds after which the run stops waiting, and is refused. 0: it waits "
        "for as long as the `execution_timeout` of `preflight` allows.",
        example="a number such as 3600",
    )


@declaration
class Spark(Declaration):
    """The connection to Spark, and how its applications run."""

    section = "Spark"

    conn_id: str = option(
        default="spark_default",
        name="spark_conn_id",
        kw_only=False,
        accepts=CONNECTION,
        title="Spark",
        help="Connection to Spark: of type `spark` (local, standalone, or any cluster in client mode), or of type "
        "`cdc_spark` (EMR Serverless, Databricks).",
        example="text such as spark_default",
    )
    conf: Mapping[str, object] | Template | None = option(
        default=None,
        name="spark_conf",
        argument="conf",
        accepts=PROPERTIES,
        secret=True,
        help="Spark properties. They are visible in the process list: do not put secrets there.",
        example='an object such as {"spark.executor.cores": "2"}',
    )
    shared_app_seconds: float | Template = option(
        default=60.0,
        accepts=SECONDS,
        help="Run the next step in the same Spark application if the application has run for less than this number of "
        "seconds. A small run thus needs one application instead of three. 0: steps do not share applications.",
        example="a number such as 60",
    )


@declaration
class Allow(Declaration):
    """The limits that the author of a DAG sets to what the users who trigger the DAG choose. The values cannot be
    templates."""

    source_conn_ids: Sequence[str] | None = option(
        default=None,
        accepts=PATTERNS,
        fixed=True,
        help="The connections that `source_conn_id`, `read_conn_ids` and `log_conn_id` may name. `*` matches any run "
        "of characters. None: any connection. "
        "Every user who may trigger the DAG can set its params, but the tasks run with Airflow's rights. So set "
        "`source_conn_ids` and `targets` if `source_conn_id` or `target` is a template.",
        example='a list such as ["cdc_*"]',
    )
    targets: Sequence[str] | None = option(
        default=None,
        accepts=PATTERNS,
        fixed=True,
        help="The allowed folders for `target` and `scratch`. Their subfolders are allowed, too. Paths are compared "
        "part by part, and `*` matches any run of characters in one part. `*` alone matches any target. None: any "
        "target.",
        example='a list such as ["s3://bucket/lake"]',
    )
    strict_conf: bool = option(
        default=False,
        accepts=FLAG,
        fixed=True,
        help="Reject a DAG run if its conf has keys that are not params of the DAG. If false, misspelt keys are "
        "ignored.",
        example="true or false",
    )
