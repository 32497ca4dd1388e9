"""Converts errors of this package to Airflow's exceptions, so that the page of a task shows the error without a long
stack trace."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_cdc.errors import CdcError, TerminalError
from airflow_provider_cdc.metrics import send_error

Returned = TypeVar("Returned")

_log = logging.getLogger(__name__)


def failing(method: Callable[..., Returned]) -> Callable[..., Returned]:
    """Wrap a method that Airflow calls, such as ``execute``, so that it raises an exception of Airflow instead of a
    `CdcError` (`airflow_error`).

    The stack trace on the task's page then shows only this function. The whole stack trace is logged at the level
    DEBUG.

    :raises AirflowFailException: a retry cannot help.
    :raises AirflowException: a retry may help.
    """

    @wraps(method)
    def raising(*args: Any, **kwargs: Any) -> Returned:
        try:
            return method(*args, **kwargs)
        except CdcError as error:
            _log.debug("Full traceback of the error", exc_info=True)
            failure = airflow_error(type(error).__name__, str(error), terminal=isinstance(error, TerminalError))
        except AirflowException as error:
            if not isinstance(error, _Reported):
                raise
            # This method called another wrapped method, which has already converted the error.
            failure = error
        _count(args[0], failure)
        # Raise the new error outside of the except block. Otherwise, the original error would be shown as the context
        # of the new error.
        raise failure.with_traceback(None) from None

    return raising


def airflow_error(name: str, message: str, *, terminal: bool) -> AirflowException:
    """Return an Airflow exception for an error of this package. The class of the exception has the same name as the
    class of the error.

    :param name: the name of the error's class.
    :param message: the error's text, with the hint.
    :param terminal: whether the error fails the task at once. Otherwise Airflow may retry the task.
    """
    error: AirflowException = _kind(name, terminal)(message)
    return error


class _Reported:
    """Base class of all exceptions that this module creates. ``counted`` is true if the metrics have already counted
    the error."""

    counted = False


def _count(task: Any, failure: Any) -> None:
    if not failure.counted:
        failure.counted = True
        source = getattr(task, "source_conn_id", "")
        send_error(type(failure).__name__, task.dag_id, source if isinstance(source, str) else "")


@cache
def _kind(name: str, terminal: bool) -> Any:
    return type(name, (_Reported, AirflowFailException if terminal else AirflowException), {"__module__": __name__})
