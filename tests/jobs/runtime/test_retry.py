"""How long a step waits for an unreachable source: one time limit in total, not nested ones."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.jobs.runtime import retry
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history


@pytest.mark.parametrize(("step", "asked"), [(0, "plan_chunks"), (1, "segments")])
def test_a_source_that_dies_while_a_step_is_planned_fails_it_after_one_budget(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, step: int, asked: str
) -> None:
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 0.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    tries: Counter[str] = Counter()

    def refuse(self: HistorySource, *arguments: Any, **_: Any) -> None:
        # Each table is planned separately.
        tries[str(arguments[0])] += 1
        raise SourceUnavailable("no answer")

    runner = here(HistorySource(random_history(random.Random(5), 40), 5), 15)
    steps = runner.steps()
    for earlier in steps[:step]:
        earlier()
    monkeypatch.setattr(HistorySource, asked, refuse)
    with pytest.raises(SourceUnavailable):
        steps[step]()
    assert set(tries.values()) == {retry.FEWEST_TRIES}
