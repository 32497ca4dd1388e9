"""All uses of private interfaces of Airflow, Spark and Jinja2, each with the versions on which it was tested.

Names of other libraries that begin with an underscore are used here, and in a few modules that extend one library each:
``sources/mysql/server/driver.py`` (PyMySQL), ``sources/postgres/server/session.py`` (ADBC), and ``sinks/iceberg``
(PyIceberg). ``tests/test_compat.py`` lists these modules, and checks that no other module uses such names.

This module imports none of its libraries, so both the Airflow code and the Spark apps can import it.
``tests/wheel/test_both_ends.py`` runs whole DAGs on the oldest and the newest versions below.

| interface | tested on |
| --- | --- |
| `spark_submit_command`, `master_of_connection` | apache-airflow-providers-apache-spark 5.4.1 to 6.3.4 |
| `databricks_request` | apache-airflow-providers-databricks 7.8.1 to 7.23.0 |
| `keeps_native_types` | apache-airflow 3.1.5 to 3.3.2 |
| `supervisor_channel`, `runs_dag_code`, `PRE_EXECUTE_HOOK` | apache-airflow 3.1.5 to 3.3.2 |
| `hide_answers_of_aws` | botocore 1.44.8 |
| `raise_undefined` | jinja2 3.1.6 |
| `start_jvm`, `has_context`, `name_user`, `is_stopped`, `executor_count` | pyspark 4.1.0 to 4.2.0 |
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from copy import copy
from typing import Any, TypeVar

_Operator = TypeVar("_Operator")

PRE_EXECUTE_HOOK = "_pre_execute_hook"
"""The name of the attribute in which an operator stores its argument ``pre_execute``."""


_OVER = {"failed", "upstream_failed", "skipped", "removed", "success"}


def is_over(states: Mapping[str, Any], task_id: str, map_index: int | None) -> bool:
    """Return whether a task is in a state in which Airflow does not run it again by itself.

    :param states: the answer of ``get_task_states`` for the DAG run. If the DAG run was deleted, it is empty.
    """
    name = f"{task_id}_{map_index}" if map_index is not None and map_index >= 0 else task_id
    return name not in states or str(states[name]) in _OVER


def spark_submit_command(hook: Any, application: str) -> list[str]:
    """Return the command with which Airflow's hook would start ``spark-submit``, and log it without its passwords.

    :param hook: a ``SparkSubmitHook``.
    :param application: the path of the app.
    """
    command: list[str] = hook._build_spark_submit_command(application)
    return command


def master_of_connection(hook: Any) -> str:
    """Return the URL of the Spark master that Airflow's hook makes of a connection. Versions of the provider differ in
    how they join type, host and port.

    :param hook: a ``SparkSubmitHook``.
    """
    return str(hook._connection["master"])


def databricks_request(hook: Any, method: str, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Send a request to Databricks, and return the answer. The hook repeats the request if the service is busy or not
    reached. Its public methods exist for a few requests only, and their errors have no status.

    :param hook: a ``DatabricksHook``.
    :param path: the path of the interface, beginning with its version.
    :raises requests.HTTPError: Databricks refuses the request.
    :raises AirflowException: no request succeeded.
    """
    answer: dict[str, Any] = hook._do_api_call((method, path), fields, wrap_http_errors=False)
    return answer


def hide_answers_of_aws() -> None:
    """Let botocore not log what it sends and gets. At the level DEBUG, it logs whole requests and answers, so the log
    of a task would show the secrets in them."""
    for name in ("botocore.endpoint", "botocore.parsers"):
        # An equal filter is added only once.
        logging.getLogger(name).addFilter(_is_above_debug)


def _is_above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def keeps_native_types(operator: type[_Operator]) -> type[_Operator]:
    """Make the argument ``render_template_as_native_obj`` of an operator effective. Airflow before 3.2 uses only the
    DAG's setting and ignores the operator's argument.

    This is a decorator and not a mixin, because Airflow's metaclass takes ``__init__`` from the first base class.

    :param operator: a subclass of ``BaseOperator`` that does not define ``get_template_env`` or ``_render`` itself.
    """

    def get_template_env(self: Any, dag: Any = None) -> Any:
        return super(operator, self).get_template_env(dag=_dag_with_native_types(self, dag))

    def _render(self: Any, template: Any, context: Any, dag: Any = None) -> Any:
        return super(operator, self)._render(template, context, dag=_dag_with_native_types(self, dag))

    for method in (get_template_env, _render):
        setattr(operator, method.__name__, method)
    return operator


def _dag_with_native_types(task: Any, dag: Any) -> Any:
    dag = dag or task.get_dag()
    if not dag or dag.render_template_as_native_obj or not getattr(task, "render_template_as_native_obj", False):
        return dag
    native_dag = copy(dag)
    native_dag.render_template_as_native_obj = True
    return native_dag


def raise_undefined(undefined: Any) -> None:
    """Raise the error of an undefined name.

    :param undefined: a ``jinja2.Undefined``.
    :raises jinja2.UndefinedError: always.
    """
    undefined._fail_with_undefined_error()


def supervisor_channel() -> Any:
    """Return the channel between this task's process and its Airflow supervisor. None: the process has no supervisor,
    as in ``dags test``."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    channel = getattr(runner, "SUPERVISOR_COMMS", None)
    return None if type(channel).__name__.startswith("InProcess") else channel


def runs_dag_code() -> bool:
    """Return whether Airflow started this process to run the code of DAGs. This is true for the DAG processor and for
    tasks, but not for ``dag.test``."""
    return os.environ.get("_AIRFLOW_PROCESS_CONTEXT") == "client"


def start_jvm(spark_context: Any) -> None:
    """Start PySpark's JVM. Before the JVM has started, ``SparkConf`` does not have the submitted properties.

    :param spark_context: the class ``SparkContext``.
    """
    spark_context._ensure_initialized()


def has_context(spark_context: Any) -> bool:
    """Return whether this process has a context. The active session belongs to a thread, so it does not show this.

    :param spark_context: the class ``SparkContext``.
    """
    return spark_context._active_spark_context is not None


def name_user(spark_context: Any, name: str) -> None:
    """Let Hadoop's classes in PySpark's JVM use ``name``, if they cannot determine the user of the process. They ask
    the operating system for the name of the user, and fail if there is none.

    :param spark_context: the class ``SparkContext``, after `start_jvm`.
    """
    from py4j.protocol import Py4JJavaError

    users = spark_context._jvm.org.apache.hadoop.security.UserGroupInformation
    try:
        # A user of Kerberos has a name.
        users.getLoginUser()
    except Py4JJavaError:
        users.setLoginUser(users.createRemoteUser(name))


def is_stopped(spark_context: Any) -> bool:
    """Return whether Spark has stopped.

    :param spark_context: a ``SparkContext``.
    """
    return bool(spark_context._jsc.sc().isStopped())


def executor_count(spark_context: Any) -> int:
    """Return the number of executors that a Spark application has. The driver is not counted.

    :param spark_context: a ``SparkContext``.
    """
    return int(spark_context._jsc.sc().getExecutorMemoryStatus().size()) - 1
