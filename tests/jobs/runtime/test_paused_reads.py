"""Runs whose reads are paused at random places are exact: parts in several sessions, and segments of the log."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from typing import Any

import pytest

from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.effective import GO, HOLD, PAUSE, Effective
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.jobs.runtime import turn
from tests.jobs import history_source
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history
from tests.seeds import some

LENGTH, INITIAL = 60, 25


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "READ_SECONDS", 0.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(*range(12), plain=3))
def test_reads_that_are_paused_anywhere_are_exact(here: MakeRunner, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    states: Counter[str] = Counter()

    def state(folder: Any) -> Effective:
        now = chance.choices([GO, HOLD, PAUSE], [12, 2, 2])[0]
        states[now] += 1
        return Effective(now)

    monkeypatch.setattr(effective, "read", state)
    given_up: Counter[str] = Counter()
    original = turn.ReadTurn._give_up

    def giving_up(self: turn.ReadTurn) -> None:
        try:
            original(self)
        except turn.GivenUp:
            given_up["once"] += 1
            raise

    monkeypatch.setattr(turn.ReadTurn, "_give_up", giving_up)
    runner = here(HistorySource(random_history(random.Random(seed), LENGTH), seed), INITIAL)
    runner.all()
    assert runner.published() == runner.expected()
    assert min(states[GO], states[HOLD], states[PAUSE]) > 0
    assert given_up


def test_a_part_that_was_paused_while_the_server_was_restarted_does_not_count(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = itertools.cycle([GO, GO, GO, GO, PAUSE])
    restarts = itertools.count()
    monkeypatch.setattr(effective, "read", lambda folder: Effective(next(states)))
    monkeypatch.setattr(history_source._Reader, "wait_until_durable", lambda self: str(next(restarts)))
    runner = here(HistorySource(random_history(random.Random(5), LENGTH), 5), INITIAL)
    with pytest.raises(SourceUnavailable, match="restarted while the read was paused"):
        runner.steps()[0]()
