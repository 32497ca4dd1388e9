"""Types of the arguments of the operators and of the task group.

With these types, type checkers and editors report a misspelt argument or a wrong type before the DAG is parsed. The
types have no effect when DAGs run. The arguments of a run are declared in `core.options.arguments`. Tests compare the
other arguments with those that Airflow accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Required, TypeAlias, TypedDict

from airflow_provider_cdc.core.options.arguments import CommonArguments, SourceArguments

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


class PreflightArguments(SourceArguments, CommonArguments, TaskArguments, total=False):
    """The keyword arguments of `PreflightOperator`."""


class SparkArguments(TaskArguments, total=False):
    """The keyword arguments of the operators that run on Spark, except the arguments that are named in the operators'
    signatures.

    These are ``deferrable``, and the arguments of Airflow's `SparkSubmitOperator` that the operators do not set
    themselves.
    """

    archives: str | None
    deferrable: bool | None
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
    """The arguments that Airflow accepts for every task group."""

    group_id: str
    prefix_group_id: bool
    add_suffix_on_collision: bool
    dag: DAG
    default_args: dict[str, object] | None
    doc_md: str | None
    group_display_name: str
    parent_group: TaskGroup | None
    tooltip: str
    ui_color: str
    ui_fgcolor: str


class GroupArguments(CommonArguments, TaskGroupArguments, total=False):
    """The keyword arguments of `SnapshotTaskGroup` that are not named in its signature."""


class PartialArguments(SourceArguments, GroupArguments, total=False):
    """The keyword arguments of `SnapshotTaskGroup.partial`."""
