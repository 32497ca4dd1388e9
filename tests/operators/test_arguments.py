"""The arguments of the operators and the task group that type checkers know are exactly the existing ones.

``dev/check`` runs mypy over this file. Each mistake below has a comment that makes mypy expect an error. mypy reports
each expected error that does not occur.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import BaseOperator, TaskGroup

from airflow_provider_cdc import Lake, Limits, SnapshotTaskGroup, Table
from airflow_provider_cdc.operators.arguments.types import SparkArguments, TaskArguments, TaskGroupArguments
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.preflight import PreflightOperator
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.operators.spark.step import SparkStepOperator

if TYPE_CHECKING:
    SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*", Table("a.b")], target="/lake", tooltip="Shop")
    SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*"], target=Lake("/lake"), limit=5)  # type: ignore[call-arg]
    SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*"], target="/lake", keep=7)  # type: ignore[call-arg]
    SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*"])  # type: ignore[call-arg]
    Lake()  # type: ignore[call-arg]
    Lake("/lake", keep=7)  # type: ignore[call-arg]
    Lake("/lake", retention=1.5)  # type: ignore[arg-type]
    Limits(4)  # type: ignore[call-arg]
    Limits(max_reads="{{ params.reads }}", governor={"replica_lag_seconds": 30})
    SnapshotTaskGroup.partial(tables=["shop.*"], group_id="shop").expand(source_conn_id=["eu", "us"])
    SnapshotTaskGroup.partial(table=["shop.*"])  # type: ignore[call-arg]
    SnapshotTaskGroup.partial(tables=5)  # type: ignore[arg-type]
    PreflightOperator(task_id="a", source_conn_id="shop", tables=["shop.*"], target="/lake", retries=1)
    PreflightOperator(task_id="b", refesh="auto")  # type: ignore[call-arg]
    PreflightOperator(task_id="c", refresh=True)  # type: ignore[arg-type]
    LockAndRecordOperator(task_id="d", source_conn_id="shop", target="/lake", plan="{{ x }}", options="{{ y }}")
    SnapshotOperator(task_id="f", source_conn_id="shop", run_uri="{{ x }}", driver_memory="2g", queue="large")
    SnapshotOperator(task_id="g", source_conn_id="shop", run_uri="{{ x }}", memory="2g")  # type: ignore[call-arg]


def taken(function: Callable[..., Any]) -> set[str]:
    """The names of the arguments of a function, without those of ``**kwargs``."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind in kinds} - {"self"}


def known(arguments: type[Any]) -> set[str]:
    return set(arguments.__annotations__)


def test_steps_take_the_arguments_of_spark_submit_by_name() -> None:
    """Airflow applies ``default_args`` only to arguments that a constructor names."""
    assert known(SparkArguments) - known(TaskArguments) < taken(SparkStepOperator.__init__)


@pytest.mark.parametrize(
    ("arguments", "function", "ours"),
    [
        # What we say ourselves is no argument.
        (TaskArguments, BaseOperator.__init__, {"do_xcom_push", "multiple_outputs", "render_template_as_native_obj"}),
        (TaskGroupArguments, TaskGroup.__init__, set()),
        (
            SparkArguments,
            SparkSubmitHook.__init__,
            {"application_args", "conf", "conn_id", "deploy_mode", "env_vars", "py_files"},
        ),
    ],
)
def test_type_checkers_know_what_airflow_takes(
    arguments: type[Any], function: Callable[..., Any], ours: set[str]
) -> None:
    own = known(arguments) - ({*known(TaskArguments), "deferrable"} if arguments is SparkArguments else set())
    # A later Airflow may take more.
    assert own <= taken(function)
    assert not own & ours
    if arguments is not SparkArguments:
        assert taken(function) - own == ours
