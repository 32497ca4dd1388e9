"""A read of hours does not go on for a log that is gone."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from airflow_provider_cdc.errors import LogGone, SourceUnavailable
from airflow_provider_cdc.jobs import snapshot
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history


class Failing(HistorySource):
    """Tells ``error`` from the second time on that it is asked whether it still has what the run needs."""

    error: Exception
    asked = 0

    def check_identity(self, identity: Mapping[str, str], position: str) -> None:
        self.asked += 1
        if self.asked > 1:
            raise self.error


@pytest.fixture
def source() -> Failing:
    return Failing(random_history(random.Random(3), 40), 3)


def test_a_log_that_is_gone_ends_the_read(here: MakeRunner, source: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "WATCH_SECONDS", 0.0)
    source.error = LogGone("the slot is gone", where="slot", hint="begin anew")
    with pytest.raises(LogGone):
        here(source, 10).steps()[0]()
    assert source.asked == 2


def test_a_server_that_does_not_answer_for_a_moment_does_not(
    here: MakeRunner, source: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "WATCH_SECONDS", 0.0)
    source.error = SourceUnavailable("no answer", where="db", hint="wait")
    here(source, 10).steps()[0]()
    assert source.asked > 2


def test_it_is_not_asked_at_every_chunk(here: MakeRunner, source: Failing) -> None:
    source.error = LogGone("the slot is gone", where="slot", hint="begin anew")
    here(source, 10).steps()[0]()
    assert source.asked == 1
