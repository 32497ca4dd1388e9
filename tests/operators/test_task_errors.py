"""What the page of a task shows of an error: its class, its message, and little else."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_cdc import errors
from airflow_provider_cdc.operators import task_errors as module
from airflow_provider_cdc.operators.task_errors import airflow_error, failing


class Task:
    dag_id = "d"
    source_conn_id = "shop"

    def __init__(self, error: Exception) -> None:
        self.error = error

    @failing
    def execute(self) -> None:
        self._deeper()

    def _deeper(self) -> None:
        try:
            raise ValueError("what led to it")
        except ValueError as cause:
            raise self.error from cause


class Later(Task):
    @failing
    def execute(self) -> None:
        super().execute()


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CdcError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("task", [Task, Later])
def test_an_error_has_our_name_and_hint_and_one_frame_of_ours(kind: Any, task: type[Task]) -> None:
    problems = [errors.Problem("shop.t", "it has no key", "give it one")]
    error = kind(problems) if kind is errors.PreflightError else kind("it is gone", where="shop.t", hint="look")
    with pytest.raises(AirflowException) as raised:
        task(error).execute()
    told = raised.value
    assert type(told).__name__ == kind.__name__
    assert str(told) == str(error)
    assert isinstance(told, AirflowFailException) == issubclass(kind, errors.TerminalError)
    frames = traceback.extract_tb(told.__traceback__)
    assert [Path(frame.filename).name for frame in frames] == [Path(__file__).name, "task_errors.py"]
    shown = "".join(traceback.format_exception(told))
    assert "what led to it" not in shown


def test_the_whole_trace_is_there_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, module.__name__), pytest.raises(AirflowException):
        Task(errors.LogGone("it was purged")).execute()
    assert "_deeper" in caplog.text
    assert "what led to it" in caplog.text


def test_what_is_not_ours_stays_as_it_is() -> None:
    for error in (AirflowException("theirs"), ZeroDivisionError("a mistake")):
        with pytest.raises(type(error)) as raised:
            Task(error).execute()
        assert raised.value is error


def test_what_a_spark_app_said_has_the_name_that_it_gave() -> None:
    error = airflow_error("LogGone", "it was purged\n  Hint: keep it", terminal=True)
    assert (type(error).__name__, str(error)) == ("LogGone", "it was purged\n  Hint: keep it")
    assert isinstance(error, AirflowFailException)
