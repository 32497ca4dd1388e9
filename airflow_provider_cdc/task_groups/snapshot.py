"""The task group that copies a set of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from inspect import signature
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AssetAlias, TaskGroup, XComArg

from airflow_provider_cdc.assets import copies_alias, outlets_of
from airflow_provider_cdc.compat import runs_dag_code
from airflow_provider_cdc.core.options.run import declared
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.arguments.types import GroupArguments, TaskGroupArguments
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.preflight import PreflightOperator
from airflow_provider_cdc.operators.release import ReleaseOfRun
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.task_groups.mapping import PartialGroup

# Releases what a run holds on its source when the DAG run ends.


def release_when_the_run_ends(dag: Any, lock_and_record: LockAndRecordOperator) -> None:
    """Add callbacks to ``dag`` that release the run of ``lock_and_record``.

    Both callbacks are needed, because a DAG run may succeed even if the group of the run did not succeed. For
    example, a user may set the states of the group's tasks, or a later task may run even after a failure of the
    group. Airflow calls a DAG's callbacks in its DAG processor. `dag.test` calls the callbacks in the process of the
    tasks, and raises an error if a param has no default. The callbacks are useless in `dag.test`, because they would
    be killed together with the tasks.
    """
    if not runs_dag_code():
        return
    for name in ("on_failure_callback", "on_success_callback"):
        callbacks = getattr(dag, name) or []
        earlier = callbacks if isinstance(callbacks, list) else [callbacks]
        setattr(dag, name, [*earlier, ReleaseOfRun(lock_and_record)])
        # The scheduler checks this attribute. Airflow sets the attribute only for callbacks that are passed to the
        # constructor.
        setattr(dag, f"has_{name}", True)


RETRYING = {"retries": 2, "retry_delay": timedelta(seconds=15)}


class SnapshotTaskGroup(TaskGroup):
    """Copy a set of tables into a lake, all exactly as of one position of their source.

    The tasks are, in this order: ``preflight``, ``lock_and_record``, ``snapshot``, ``extract_delta``,
    ``consolidate``::

        with DAG("shop", schedule="@daily", start_date=datetime(2025, 1, 1), catchup=False):
            shop = SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*"], target="s3://lake/raw")
            refresh(shop.published)

    Each copy creates an event of its table's asset: see `airflow_provider_cdc.assets`.

    To create one group for each of several sources::

        SnapshotTaskGroup.partial(tables=["shop.*"], target="s3://lake/{source}").expand(source_conn_id=["eu", "us"])

    Every argument may be a template, except ``group_id``, ``prefix_group_id``, ``source_conn_ids``, ``targets`` and
    ``strict_conf``. A template keeps the type of its value: ``tables="{{ params.tables }}"`` is a list if the param is
    a list. The tasks determine the kind of database from the type of the connection. After a transient error, Airflow
    retries the task twice, unless the ``default_args`` of the DAG or the group set another number. After an error that
    a retry cannot fix, the task fails at once.

    :param source_conn_id: Connection to the source, of type ``cdc_mysql``, ``cdc_postgres``, ``mysql`` or ``postgres``.
    :param tables: The tables as ``schema.table``. ``*`` matches any run of characters in either part. A pattern that
        begins with ``!`` excludes tables that earlier patterns matched (``!shop._*_gho``). A part in double quotes is
        taken literally, including dots and stars.
    :param target: The folder to publish in, as an absolute path or a URI (``file:///…``, ``s3://…``, ``gs://…``,
        ``abfs://…``, ``hdfs://…``) without query, fragment or user info. Airflow and Spark must both reach it.
        ``{source}`` in the path stands for ``source_conn_id``, because a folder can hold the copies of only one source.
    :param where: Conditions by table name or pattern (``{"shop.orders": "status = 'open' and created >=
        '2026-01-01'"}``). Only rows that fulfil the condition at the run's position are copied. The syntax is a subset
        of SQL. Text is compared by code point. Copies with a condition are in a separate folder.
    :param columns: The columns to publish, by table name or pattern (``{"shop.orders": ["id", "status"]}``). The key
        columns are always published. The copies of a table with selected columns are in a separate folder.
    :param scratch: The folder for the files and records of runs in progress, in the same form as ``target``. Empty:
        ``_runs`` in the target. If the folder is in another store, files are copied when they are published. A run can
        roll forward only copies of runs with the same ``scratch``. ``targets`` must allow this folder, too.
    :param consistency: How the tables are read. ``watermark``: the tables are read in chunks at different times,
        without a lock, and need a key. ``lock`` (MySQL): the tables are locked for milliseconds, then read in one
        transaction. ``exported`` (PostgreSQL): all tasks read in one exported snapshot. ``again`` (PostgreSQL): like
        ``watermark``, for tables without ``REPLICA IDENTITY FULL``. At the end, the run reads touched rows again in one
        short snapshot, and is exact at this snapshot. ``auto``: ``watermark`` for tables with a key, ``lock`` or
        ``exported`` for tables without a key. On PostgreSQL, ``auto`` means ``again`` if a table lacks ``REPLICA
        IDENTITY FULL``.
    :param unrepresentable: How to treat values that no Arrow type holds, such as ``0000-00-00``, ``infinity``, or bytes
        that are not a valid character. ``error`` stops the run if such a value is in the copy. ``null`` publishes null
        and counts the values. ``string`` publishes the columns of such values as text, and invalid bytes as ``0x…``.
    :param arrays: PostgreSQL: How to publish arrays whose elements have an Arrow type. ``text``: as the server prints
        them. ``list``: as lists, except in columns of the key and in tables without a key. A list has no dimensions and
        no bounds: ``unrepresentable`` decides about an array of several dimensions, an array whose lower bound is not
        1, and an array with an element that no Arrow type holds.
    :param missing_past: What a run does if its copies cannot be exact at the end of its interval. (The DAG ``nightly``
        supplies this end as ``as_of``.) ``present`` copies the current state, and reports this in the logs, in
        ``_latest.json``, in the event and in the report (``missed_as_of``). ``fail`` stops the run. With ``present``
        and ``on_table_error`` = ``skip``, only tables that can never be copied as of a past time are left out. Runs of
        an Airflow backfill and runs with an explicit ``as_of`` always stop.
    :param spark_conn_id: Connection to Spark: local, standalone, or any cluster in client mode.
    :param spark_conf: Spark properties. They are visible in the process list: do not put secrets there.
    :param shared_app_seconds: Run the next step in the same Spark application if the application has run for less than
        this number of seconds. A small run thus needs one application instead of three. 0: steps do not share
        applications.
    :param chunk_rows: Approximate number of rows that one statement reads. The number is raised if a table would have
        more than 10,000 chunks, or a run more than 50,000.
    :param chunk_pause: Seconds that a reader pauses after each chunk, to reduce the load on the source. Must be below
        900.
    :param as_of: The time or position at which the copies are exact: a time with its zone (``2026-01-31T00:00:00Z``), a
        date (00:00 UTC of that day), a GTID set or an LSN. Empty: now. The source must still have the log since then
        (PostgreSQL: in the ``standing_slot``). Commits at that time are included.
    :param as_of_wait_seconds: Deprecated, without effect: a run no longer waits for a commit after the time in
        ``as_of``.
    :param standing_slot: PostgreSQL: A name, such as ``nightly``, for a replication slot that stays on the server from
        run to run. The slot retains the log that ``as_of`` and ``refresh`` need. Empty: no standing slot. Runs with the
        same name share the slot. The slot uses disk space on the server, and stays until you drop it.
    :param standing_slot_hours: PostgreSQL: Hours of log that the standing slot retains. After publishing, a run
        releases older log. If ``refresh`` needs older log to roll the last copies forward, this log is retained longer,
        for a week at most.
    :param refresh: ``full``: all tables are read. ``auto``: the run makes the new copy of a table from its last copy
        and the changes in the source's log, if the result is exact. Other tables are read in full, and the task log of
        ``preflight`` gives the reason. ``changes``: like ``auto``, but the run stops if a table would have to be read
        in full. On PostgreSQL, ``auto`` and ``changes`` need a ``standing_slot``.
    :param changes: With each copy that is rolled forward, also publish all row changes since the last copy, in commit
        order. Requires ``refresh``. ``on_feed_gap`` is about tables whose last copy cannot be rolled forward. If a
        table has no copy, its changes begin at the first copy. PostgreSQL tables need ``REPLICA IDENTITY FULL``.
    :param on_feed_gap: With ``changes``: what a run does if the changes since the last copy of a table cannot be
        published. ``fail`` stops the run. ``begin_anew`` copies the table as without ``changes``. The changes then
        begin anew at this copy. The plan, the logs, the report, the event and the copy say so.
    :param keep: Number of copies to keep of each table. After a run has published its copies, it removes older copies
        of the same tables, even if another run published these copies. 0 keeps all copies.
    :param keep_days: Copies that were published within this number of days are kept, even if there are more than
        ``keep`` copies. Requires ``keep``. 0: only the number of copies counts.
    :param max_reads: Maximum number of tasks that read the source at the same time. 0: as many as Spark has slots. It
        can be changed while the run works.
    :param max_rows_per_second: Maximum number of rows that all tasks together read from the tables per second, on
        average. A task pauses between two chunks, so the chunks of the run are smaller with this option. 0: no limit.
        It can be changed while the run works.
    :param governor: Numbers of the source to watch, each with a threshold. While a number is above its threshold, the
        run reads more and more slowly, and then pauses. The names are ``threads_running``, ``replica_lag_seconds``,
        ``history_list_length`` (MySQL) and ``oldest_xmin_age`` (PostgreSQL). A key that begins with ``SELECT`` is a
        query that returns one number.
    :param scrub_days: A copy that is rolled forward takes over unchanged files from the last copy. Within this number
        of days, runs read each of these files once, and compare it with its checksum. A damaged file is reported, and
        its table is then read in full. 0: unchanged files are not read.
    :param scrub_gib: The most GiB of unchanged files that a run reads to check them; the files that have been due the
        longest come first. 0: all files that are due.
    :param lock_wait_seconds: Seconds for which one attempt to take a lock may block other sessions.
    :param lock_tries: Number of times that a run tries to take a lock.
    :param lock_pause_seconds: Seconds between two tries.
    :param lock_through_read: MySQL: Hold the lock until the table is read. Some servers need this for a consistent read
        view.
    :param slot_wait_seconds: PostgreSQL: Seconds to wait for open write transactions at slot creation. The wait does
        not block other sessions.
    :param keep_slot: PostgreSQL: Keep the publication and the slot after the run is published, so that another program
        can stream the changes from ``initial_lsn`` on. You must then drop the publication and the slot yourself.
    :param format: The format of the copies. ``parquet``: a folder of Parquet files for each copy, and ``_latest.json``.
        ``iceberg``: one snapshot of an Iceberg table for each copy, and one cut for each run. A reader of a cut sees
        all tables at one position. This format needs the extra ``iceberg``.
    :param catalog_conn_id: Connection of type ``cdc_catalog`` to the catalog of the Iceberg tables. Empty: a SQLite
        catalog in the file ``_catalog.db`` of the target. The target must then be on a local disk.
    :param table_name: A template for the names of the Iceberg tables, with the namespace. ``{schema}`` and ``{table}``
        stand for the schema and the table in the source, ``{source}`` for the id of the source's connection.
    :param partition_by: The partitioning of the Iceberg tables, by table name or pattern: a list of columns and of
        transforms of columns (``{"shop.orders": ["country", "month(created)", "bucket(16, id)"]}``). The transforms are
        ``year``, ``month``, ``day`` and ``hour`` of a time, ``bucket(number, column)``, and ``truncate(length,
        column)`` of a text. It applies when the Iceberg table is created. One task writes at most 200 partitions.
    :param sort_by: The sort order of the Iceberg tables, by table name or pattern: a list of columns (``{"shop.orders":
        ["created desc", "id"]}``). It is a property of the table for programs that compact it. The files of a run are
        not sorted by it.
    :param on_type_change: How to treat a column whose type changed at the source, if Iceberg cannot widen the column to
        the new type (``int`` to ``text``): ``stop`` stops the run before it reads a row; ``new_column`` drops the
        Iceberg column and adds another one with the same name and the new type. Older snapshots keep the old column
        with its values.
    :param on_foreign_commit: How to treat an Iceberg table whose rows another program changed since the last copy:
        ``stop`` stops the run; ``replace`` reads the table in full, and publishes the whole copy in place of all rows.
        The copy never has rows of both.
    :param storage_conn_id: Connection to the object store of ``target`` and ``scratch``, of type ``aws``,
        ``google_cloud_platform``, ``wasb`` or ``adls``, with its credentials, endpoint and region. Airflow's tasks,
        Spark's driver and its executors use it. Empty: what they find in their environment, such as the role of the
        machine.
    :param on_table_error: How to treat tables that cannot be copied. A table may lack transactions, a key or ``REPLICA
        IDENTITY FULL``, or may have a type or a value that no Arrow type holds. ``fail`` stops the run. ``skip`` leaves
        these tables out, names them in the logs, and lists them with the reasons in the XCom ``skipped``.
    :param on_schema_change: What a run does if a table is altered while the run works, and the result could be wrong.
        ``restart_table``: the run fixes a later position and reads at most the altered table again. The other tables
        are brought to the new position by the log. All tables are exact at the new position, which is in the XComs of
        ``consolidate``, in the report and in the copies. A run with ``as_of`` cannot move its position:
        ``on_table_error`` says whether it stops or leaves the altered table out. ``give_up_past``: like
        ``restart_table``, but if the DAG ``nightly`` supplied ``as_of``, the run moves to the present, and reports that
        it missed the requested time. ``fail`` stops the run.
    :param spool: Whether the run reads the log in pieces while it reads the tables. ``auto``: it does, if it takes
        longer than 30 seconds and if the way in which the tables are read allows it. The source then need not keep the
        log until the reads end, and the run ends sooner. ``off``: the run reads the log after the tables.
    :param on_short_log: What a run does if the source will remove the log before the run has read it, according to the
        source's settings, the growth of the log and the progress of the run. The run warns in any case. ``stop`` stops
        the run if the log would be gone in less than a third of the time that the run still needs, and 30 minutes of
        warnings have not changed this. ``warn`` lets the run go on until the log is gone.
    :param merge: Merged tables, each with its shards: the tables of the run whose rows it has, by name or pattern
        (``{"shop.orders": ["shop_*.orders_*"]}``). The shards are published together, as one table, and not on their
        own. ``tables`` must match the shards, too. All shards need the same key and the same columns.
    :param origin_columns: Add the columns ``_source``, ``_schema`` and ``_table`` to merged tables: the connection, the
        schema and the table from which a row was copied.
    :param on_collision: What happens if several shards of a merged table have a row with the same key at the run's
        position. ``fail``: the merged table fails, and the error names keys and shards. ``origin_in_key``: such rows
        are different rows, because the origin columns are part of the merged table's key. Requires ``origin_columns``.
    :param vanished_shards: Tables that were shards of the last copy of a merged table, and that may be missing now.
        Without this confirmation, a missing shard stops the merged table, because its rows would disappear.
    :param column_order: The order of a merged table's columns: ``first_shard``: that of its first shard. ``name``: the
        key, and then by name.
    :param concurrent_runs: What ``preflight`` does if another run of the same ``target`` and ``scratch`` copies some of
        the same tables, and is under way. ``allow``: the run works beside it. Both copies are exact, and the one with
        the later position becomes the latest one. ``wait``: ``preflight`` waits until the other run is published or has
        failed. ``refuse``: the run stops, and names the other run. A run that died holds up no other run.
    :param concurrent_wait_seconds: With ``concurrent_runs`` = ``wait``: seconds after which the run stops waiting, and
        is refused. 0: it waits for as long as the ``execution_timeout`` of ``preflight`` allows.
    :param plan_only: Check everything, and show what a run would do and its approximate duration. Nothing is copied.
        The tasks after ``preflight`` are skipped.
    :param source_conn_ids: The connections that ``source_conn_id`` may name. ``*`` matches any run of characters. None:
        any connection. Every user who may trigger the DAG can set its params, but the tasks run with Airflow's rights.
        So set ``source_conn_ids`` and ``targets`` if ``source_conn_id`` or ``target`` is a template.
    :param targets: The allowed folders for ``target`` and ``scratch``. Their subfolders are allowed, too. Paths are
        compared part by part, and ``*`` matches any run of characters in one part. ``*`` alone matches any target.
        None: any target.
    :param strict_conf: Reject a DAG run if its conf has keys that are not params of the DAG. If false, misspelt keys
        are ignored.
    :param group_id: id of the group.
    :param prefix_group_id: whether the ids of the tasks begin with the id of the group. If a DAG has several of these
        groups, at most one group may set this argument to False.
    :param kwargs: other arguments of ``TaskGroup``.
    :raises ConfigurationError: an argument is unknown to this class and to ``TaskGroup``.
    """

    def __init__(
        self,
        *,
        source_conn_id: str,
        tables: Sequence[str] | str,
        target: str,
        where: Mapping[str, str] | str | None = None,
        columns: Mapping[str, Sequence[str]] | str | None = None,
        scratch: str = "",
        consistency: str = "auto",
        unrepresentable: str = "error",
        arrays: str = "text",
        missing_past: str = "present",
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, Any] | str | None = None,
        shared_app_seconds: float | str = 60.0,
        chunk_rows: int | str = 100_000,
        chunk_pause: float | str = 0.0,
        as_of: str = "",
        as_of_wait_seconds: int | str = 600,
        standing_slot: str = "",
        standing_slot_hours: int | str = 48,
        refresh: str = "full",
        changes: bool | str = False,
        on_feed_gap: str = "fail",
        keep: int | str = 0,
        keep_days: int | str = 0,
        max_reads: int | str = 0,
        max_rows_per_second: int | str = 0,
        governor: Mapping[str, float] | str | None = None,
        scrub_days: int | str = 7,
        scrub_gib: float | str = 0.0,
        lock_wait_seconds: int | str = 5,
        lock_tries: int | str = 12,
        lock_pause_seconds: float | str = 2.0,
        lock_through_read: bool | str = False,
        slot_wait_seconds: int | str = 600,
        keep_slot: bool | str = False,
        format: str = "parquet",
        catalog_conn_id: str = "",
        table_name: str = "{schema}.{table}",
        partition_by: Mapping[str, Sequence[str]] | str | None = None,
        sort_by: Mapping[str, Sequence[str]] | str | None = None,
        on_type_change: str = "stop",
        on_foreign_commit: str = "stop",
        storage_conn_id: str = "",
        on_table_error: str = "fail",
        on_schema_change: str = "restart_table",
        spool: str = "auto",
        on_short_log: str = "stop",
        merge: Mapping[str, Sequence[str]] | str | None = None,
        origin_columns: bool | str = False,
        on_collision: str = "fail",
        vanished_shards: Sequence[str] | str | None = None,
        column_order: str = "first_shard",
        concurrent_runs: str = "allow",
        concurrent_wait_seconds: float | str = 0.0,
        plan_only: bool | str = False,
        source_conn_ids: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        strict_conf: bool = False,
        group_id: str = "cdc_snapshot",
        prefix_group_id: bool = False,
        **kwargs: Unpack[TaskGroupArguments],
    ) -> None:
        # Collect the arguments by name, so that a new option needs to be added only to the signature.
        arguments = dict(locals())
        options = {option.argument: arguments[option.name] for option in declared()}
        _check_arguments(kwargs)
        super().__init__(group_id=group_id, prefix_group_id=prefix_group_id, **kwargs)
        # RETRYING has the lowest precedence. If RETRYING were passed to the constructor of the group, it would override
        # the default arguments of the DAG.
        self.default_args: dict[str, Any] = {**RETRYING, **(self.dag.default_args or {}), **self.default_args}
        allowed: dict[str, Any] = {"source_conn_ids": source_conn_ids, "targets": targets}
        with self:
            self.preflight = PreflightOperator(
                task_id="preflight",
                **options,
                strict_conf=strict_conf,
                **allowed,
            )
            self.lock_and_record = LockAndRecordOperator(
                task_id="lock_and_record",
                source_conn_id=source_conn_id,
                target=target,
                scratch=scratch,
                plan=self.preflight.output["plan"],
                options=self.preflight.output["options"],
                skipped=self.preflight.output["skipped"],
                missed_past=self.preflight.output["missed_past"],
                may_miss_past=self.preflight.output["may_miss_past"],
                request=self.preflight.output["request"],
                plan_only=plan_only,
                storage_conn_id=storage_conn_id,
                **allowed,
            )
            on_spark: dict[str, Any] = {
                "source_conn_id": source_conn_id,
                "run_uri": self.run_uri,
                "spark_conn_id": spark_conn_id,
                "conf": spark_conf,
                "shared_app_seconds": shared_app_seconds,
                "storage_conn_id": storage_conn_id,
            }
            self.snapshot = SnapshotOperator(task_id="snapshot", **on_spark)
            self.extract_delta = ExtractDeltaOperator(task_id="extract_delta", **on_spark)
            self.consolidate = ConsolidateOperator(
                task_id="consolidate",
                outlets=outlets_of(
                    source_conn_id,
                    tables,
                    on_table_error,
                    self.copies,
                    target=target,
                    in_part=bool(where or columns or merge),
                ),
                **on_spark,
            )
            self.snapshot >> self.extract_delta >> self.consolidate
        release_when_the_run_ends(self.dag, self.lock_and_record)

    @classmethod
    def partial(cls, **shared: Unpack[GroupArguments]) -> PartialGroup[SnapshotTaskGroup]:
        """Prepare a group for each of several sources.

        Pass the other arguments to `expand` or `expand_kwargs` of the returned object.

        :param shared: the arguments that all groups have in common.
        :raises ConfigurationError: an argument is unknown to this class and to ``TaskGroup``.
        """
        own_parameters = [*signature(cls.__init__).parameters][1:-1]
        _check_arguments({name: value for name, value in shared.items() if name not in own_parameters})
        return PartialGroup(cls, shared)

    @property
    def run_uri(self) -> XComArg:
        """The run's folder, which holds its manifest."""
        return self.lock_and_record.output["run_uri"]

    @property
    def copies(self) -> AssetAlias:
        """The asset alias of this group. A DAG that is scheduled on the alias runs whenever this group has published
        copies, of any tables and in any target.

        For the asset of one table, see `airflow_provider_cdc.assets.table_asset`.
        """
        return copies_alias(self.dag.dag_id, str(self.group_id))

    @property
    def published(self) -> XComArg:
        """The URI of each table's new files, by table name."""
        return self.consolidate.output["published"]


def _check_arguments(given: Mapping[str, Any]) -> None:
    """Reject unknown arguments. Airflow's own error message would name ``TaskGroup`` and would list only the arguments
    of ``TaskGroup``."""
    group_parameters = {name for name in signature(TaskGroup.__init__).parameters if name not in ("self", "kwargs")}
    own_parameters = [*signature(SnapshotTaskGroup.__init__).parameters][1:-1]
    for name in given:
        if name not in group_parameters:
            alike = get_close_matches(name, [*own_parameters, *group_parameters], 1)
            raise ConfigurationError(
                f"SnapshotTaskGroup has no argument {name!r}",
                hint=f"did you mean {alike[0]}?" if alike else f"its arguments are {', '.join(own_parameters)}",
            )
