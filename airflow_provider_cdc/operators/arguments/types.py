"""Types of the arguments of the operators and of the task group.

With these types, type checkers and editors report a misspelt argument or a wrong type before the DAG is parsed. The
types have no effect when DAGs run. Tests compare the option types with the declarations of the options
(`core.options`), and the task arguments with the arguments that Airflow accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Required, TypeAlias, TypedDict

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context, TaskGroup, XComArg

    Callback: TypeAlias = Callable[[Context], object]
    Callbacks: TypeAlias = Callback | Collection[Callback] | None

Xcom: TypeAlias = "XComArg | str | Mapping[str, object] | Sequence[object] | None"
"""The output of another task: an `XComArg`, a template, or the value itself."""


class TaskArguments(TypedDict, total=False):
    """The arguments that Airflow accepts for every task."""

    task_id: Required[str]
    allow_nested_operators: bool
    dag: DAG | None
    default_args: dict[str, object] | None
    depends_on_past: bool
    doc: str | None
    doc_json: str | None
    doc_md: str | None
    doc_rst: str | None
    doc_yaml: str | None
    email: str | Sequence[str] | None
    email_on_failure: bool
    email_on_retry: bool
    end_date: datetime | None
    execution_timeout: timedelta | None
    executor: str | None
    executor_config: dict[str, object] | None
    ignore_first_depends_on_past: bool
    inlets: object
    logger_name: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    max_retry_delay: timedelta | float | None
    on_execute_callback: Callbacks
    on_failure_callback: Callbacks
    on_retry_callback: Callbacks
    on_skipped_callback: Callbacks
    on_success_callback: Callbacks
    outlets: object
    owner: str
    params: MutableMapping[str, object] | None
    pool: str | None
    pool_slots: int
    post_execute: Callable[..., object] | None
    pre_execute: Callable[..., object] | None
    priority_weight: int
    queue: str
    resources: dict[str, object] | None
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: bool | float
    retry_policy: object
    run_as_user: str | None
    sla: timedelta | None
    start_date: datetime | None
    task_display_name: str | None
    task_group: TaskGroup | None
    trigger_rule: str
    wait_for_downstream: bool
    wait_for_past_depends_before_skipping: bool
    weight_rule: object


class OptionArguments(TypedDict, total=False):
    """The options of a run, under the names that both the operators and the task group use."""

    source_conn_id: str
    tables: Sequence[str] | str
    target: str
    where: Mapping[str, str] | str | None
    columns: Mapping[str, Sequence[str]] | str | None
    scratch: str
    consistency: str
    unrepresentable: str
    arrays: str
    spark_conn_id: str
    shared_app_seconds: float | str
    chunk_rows: int | str
    chunk_pause: float | str
    as_of: str
    as_of_wait_seconds: int | str
    standing_slot: str
    standing_slot_hours: int | str
    refresh: str
    changes: bool | str
    on_feed_gap: str
    keep: int | str
    keep_days: int | str
    max_reads: int | str
    max_rows_per_second: int | str
    governor: Mapping[str, float] | str | None
    scrub_days: int | str
    scrub_gib: float | str
    lock_wait_seconds: int | str
    lock_tries: int | str
    lock_pause_seconds: float | str
    lock_through_read: bool | str
    slot_wait_seconds: int | str
    keep_slot: bool | str
    format: str
    catalog_conn_id: str
    table_name: str
    partition_by: Mapping[str, Sequence[str]] | str | None
    sort_by: Mapping[str, Sequence[str]] | str | None
    on_type_change: str
    on_foreign_commit: str
    storage_conn_id: str
    on_table_error: str
    on_schema_change: str
    spool: str
    on_short_log: str
    merge: Mapping[str, Sequence[str]] | str | None
    origin_columns: bool | str
    on_collision: str
    vanished_shards: Sequence[str] | str | None
    column_order: str
    missing_past: str
    concurrent_runs: str
    concurrent_wait_seconds: float | str
    plan_only: bool | str


class PreflightArguments(TaskArguments, OptionArguments, total=False):
    """The keyword arguments of `PreflightOperator` that are not named in the operator's signature."""

    conf: Mapping[str, object] | str | None


class SparkArguments(TaskArguments, total=False):
    """The keyword arguments of the operators that run on Spark, except the arguments that are named in the operators'
    signatures.

    These are the arguments of Airflow's `SparkSubmitOperator` that the operators do not set themselves.
    """

    archives: str | None
    driver_class_path: str | None
    driver_memory: str | None
    exclude_packages: str | None
    executor_cores: int | None
    executor_memory: str | None
    files: str | None
    jars: str | None
    keytab: str | None
    name: str
    num_executors: int | None
    packages: str | None
    principal: str | None
    properties_file: str | None
    proxy_user: str | None
    repositories: str | None
    spark_binary: str | None
    status_poll_interval: int
    total_executor_cores: int | None
    use_krb5ccache: bool
    verbose: bool
    yarn_queue: str | None


class TaskGroupArguments(TypedDict, total=False):
    """The arguments that Airflow accepts for every task group, except the arguments that are named in the signature of
    `SnapshotTaskGroup`."""

    add_suffix_on_collision: bool
    dag: DAG
    default_args: dict[str, object] | None
    doc_md: str | None
    group_display_name: str
    parent_group: TaskGroup | None
    tooltip: str
    ui_color: str
    ui_fgcolor: str


class GroupArguments(OptionArguments, TaskGroupArguments, total=False):
    """The keyword arguments of `SnapshotTaskGroup`."""

    spark_conf: Mapping[str, object] | str | None
    source_conn_ids: Sequence[str] | None
    targets: Sequence[str] | None
    strict_conf: bool
    group_id: str
    prefix_group_id: bool
