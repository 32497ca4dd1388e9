"""Our errors as Airflow's, so that the page of a task shows what matters and little else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_cdc.errors import CdcError, TerminalError
from airflow_provider_cdc.metrics import tell_error

Returned = TypeVar("Returned")

_log = logging.getLogger(__name__)


def failing(method: Callable[..., Returned]) -> Callable[..., Returned]:
    """Have a method that Airflow calls, such as ``execute``, raise our errors as Airflow's: see `airflow_error`.

    The page of the task shows the error, and of our code no more than this function. The whole trace is logged at
    DEBUG.

    :raises AirflowFailException: a retry cannot help.
    :raises AirflowException: a retry may help.
    """

    @wraps(method)
    def raising(*args: Any, **kwargs: Any) -> Returned:
        try:
            return method(*args, **kwargs)
        except CdcError as error:
            _log.debug("Where the error came from", exc_info=True)
            failure = airflow_error(type(error).__name__, str(error), terminal=isinstance(error, TerminalError))
        except AirflowException as error:
            if not isinstance(error, _Told):
                raise
            # Another method that Airflow calls has raised it.
            failure = error
        _count(args[0], failure)
        # Here, where nothing is being handled, so that it is raised without what led to it.
        raise failure.with_traceback(None) from None

    return raising


def airflow_error(name: str, message: str, *, terminal: bool) -> AirflowException:
    """An error of ours, as an error of Airflow's under the same name.

    :param name: the name of its class.
    :param message: its text, with the hint.
    :param terminal: whether it fails the task at once; else Airflow may retry it.
    """
    error: AirflowException = _kind(name, terminal)(message)
    return error


class _Told:
    """What all errors that are raised here have in common. ``counted``: the metrics have it."""

    counted = False


def _count(task: Any, failure: Any) -> None:
    if not failure.counted:
        failure.counted = True
        source = getattr(task, "source_conn_id", "")
        tell_error(type(failure).__name__, task.dag_id, source if isinstance(source, str) else "")


@cache
def _kind(name: str, terminal: bool) -> Any:
    return type(name, (_Told, AirflowFailException if terminal else AirflowException), {"__module__": __name__})
