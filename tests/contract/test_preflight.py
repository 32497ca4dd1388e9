"""A source is cheap to create and safe to pickle, and preflight reports all problems at once, before any work."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.errors import (
    LockNotGranted,
    LoginRefused,
    PreflightError,
    Problem,
    SourceUnavailable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import AT_START, Source, Start
from tests.contract.begun import LOCK, RUN_ID, Begin, sent, written
from tests.contract.databases import PASSWORD, Database
from tests.soon import soon


@pytest.fixture
def shop(db: Database) -> Database:
    db.create("orders", "id INT PRIMARY KEY, note VARCHAR(20)")
    db.create("order_lines", "order_id INT, line INT, PRIMARY KEY (order_id, line)")
    db.create("visits", "a INT")
    return db


def problems(source: Source, patterns: list[str], consistency: str = "auto", policy: str = "error") -> list[Problem]:
    with pytest.raises(PreflightError) as refused:
        source.preflight(patterns, TableOptions(consistency, policy))
    assert isinstance(refused.value, TerminalError)
    assert PASSWORD not in str(refused.value)
    for problem in refused.value.problems:
        assert problem.where
        assert problem.what
        assert problem.hint
        assert str(problem) in str(refused.value)
    return list(refused.value.problems)


def test_a_source_holds_settings_and_no_session_and_shows_no_password(shop: Database) -> None:
    shop.wait_for_no_session()
    source = open_source(shop.settings)
    assert (source.kind, source.position_key) == (shop.kind, shop.position_key)
    assert shop.sessions() == []
    plans = source.preflight([f"{shop.schema}.*"])
    shop.wait_for_no_session()
    there = sent(source)
    assert there.preflight([f"{shop.schema}.*"]) == plans
    for shown in (repr(source), repr(there), str(source), repr(vars(source))):
        assert PASSWORD not in shown
    assert shop.settings.address in repr(there)


def test_patterns_name_each_table_once_in_order_and_no_other(shop: Database) -> None:
    shop.create("reorder", "id INT PRIMARY KEY")
    source = open_source(shop.settings)

    def named(*patterns: str) -> list[str]:
        return [str(plan.table).removeprefix(f"{shop.schema}.") for plan in source.preflight(patterns)]

    schema = shop.schema
    assert named(f"{schema}.order*") == ["order_lines", "orders"]
    assert named(f"{schema}.*order*") == ["order_lines", "orders", "reorder"]
    assert named(f"{schema[:-1]}*.visits", f"{schema}.orders", f"{schema}.o*s") == ["order_lines", "orders", "visits"]
    # Nothing but the star is a wildcard.
    assert problems(source, [f"{schema}.order_"])[0].where == f"{schema}.order_"


def test_a_plan_says_how_each_table_is_read_and_why(shop: Database) -> None:
    source = open_source(shop.settings)
    plans = {
        plan.table.name: plan for plan in source.preflight([f"{shop.schema}.*"], TableOptions(unrepresentable="null"))
    }
    assert {name: plan.consistency for name, plan in plans.items()} == {
        "orders": "watermark",
        "order_lines": "watermark",
        "visits": shop.at_one_position,
    }
    assert "order_id, line" in plans["order_lines"].reason
    assert "no key" in plans["visits"].reason
    for plan in plans.values():
        assert plan.unrepresentable == "null"
        assert decode(TablePlan, written(encode(plan)), "") == plan
    asked = source.preflight([f"{shop.schema}.*"], TableOptions(shop.at_one_position))
    assert {plan.consistency for plan in asked} == {shop.at_one_position}
    assert all(shop.at_one_position in plan.reason for plan in asked)


def test_whatever_is_asked_for_in_vain_is_told_at_once(shop: Database) -> None:
    source, schema = open_source(shop.settings), shop.schema
    patterns = [f"{schema}.visits", f"{schema}.missing", f"{schema}.none*", "nodot"]
    found = problems(source, patterns, "watermark", "nil")
    wanted = {"unrepresentable", f"{schema}.missing", f"{schema}.none*", "'nodot'", f"{schema}.visits"}
    assert {problem.where for problem in found} == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize("consistency", ["eventual", "", "of another kind"])
def test_a_consistency_that_it_has_not_is_told_with_those_that_it_has(shop: Database, consistency: str) -> None:
    asked = shop.of_another_kind if consistency == "of another kind" else consistency
    (problem,) = problems(open_source(shop.settings), [f"{shop.schema}.orders"], asked)
    assert problem.where == "consistency"
    assert all(name in problem.hint for name in ("auto", "watermark", shop.at_one_position))
    assert shop.of_another_kind not in problem.hint


def test_no_table_at_all_is_a_problem(shop: Database) -> None:
    assert [problem.where for problem in problems(open_source(shop.settings), [])] == ["tables"]


def blocked(source: Source, shop: Database) -> str:
    """Why preflight was blocked."""
    with pytest.raises(LockNotGranted) as refused:
        source.preflight([f"{shop.schema}.*"])
    assert f"{shop.schema}.orders" in refused.value.where
    assert refused.value.hint
    return refused.value.message


@pytest.mark.slow
def test_a_table_that_is_locked_against_readers_is_named_with_who_locks_it(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"airflow_provider_cdc.sources.{shop.kind}.server.server.SECONDS", 1)
    shop.create("days", "id INT PRIMARY KEY, day DATE")
    source = open_source(shop.settings)
    plans = source.preflight([f"{shop.schema}.*"])
    with shop.locked("days"):
        began = time.monotonic()
        assert re.search(r"session \d+ of \S+ .*holds the lock .* on \S*days,? for ", blocked(source, shop))
        with pytest.raises(LockNotGranted):
            source.sample(plans)
        assert time.monotonic() - began < 30
    assert source.preflight([f"{shop.schema}.*"]) == plans


def test_a_lock_that_waits_for_others_blocks_readers_and_is_named(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"airflow_provider_cdc.sources.{shop.kind}.server.server.SECONDS", 1)
    source = open_source(shop.settings)
    shop.insert("orders", [(1, "a")])
    # Should this fail, the reading session has to end before the pool waits for the other one.
    with ThreadPoolExecutor(1) as pool, closing(shop.connect()) as reading, reading.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM orders")
        cursor.fetchall()
        altering = pool.submit(shop.execute, "ALTER TABLE orders ADD COLUMN more INT")
        soon(shop.lock_waits, 1)
        assert "waits for the lock" in blocked(source, shop)
        cursor.execute("ROLLBACK")
        altering.result()


CALLS: dict[str, Callable[[Source, Any], object]] = {
    "preflight": lambda source, run: source.preflight(["a.b"]),
    "record_initial": lambda source, run: source.record_initial(list(run.plans.values()), LOCK, RUN_ID),
    "check_identity": lambda source, run: source.check_identity(run.identity, run.position),
    "plan_chunks": lambda source, run: source.plan_chunks(run.tables["orders"], 10),
    "bound_reads": lambda source, run: source.bound_reads(),
    "segments": lambda source, run: source.segments(Start(run.position, run.identity), AT_START, run.log_end()),
    "reader": lambda source, run: source.reader(run.tables["orders"], "watermark", LOCK).__enter__(),
}


def test_a_server_that_does_not_answer_is_worth_another_try(shop: Database, begin: Begin) -> None:
    away, run = open_source(dataclasses.replace(shop.settings, port=1)), begin("orders")
    for name, call in CALLS.items():
        with pytest.raises(SourceUnavailable) as refused:
            call(away, run)
        assert isinstance(refused.value, TransientError), name
        assert refused.value.hint, name
        assert PASSWORD not in str(refused.value), name


def test_credentials_that_are_refused_are_not_tried_again(shop: Database) -> None:
    wrong = "wr0ng-h0rse"
    for settings in (
        dataclasses.replace(shop.settings, password=wrong),
        dataclasses.replace(shop.settings, user="nobody"),
    ):
        # No `TransientError`: nothing in the same process tries again. Airflow may, with the present password.
        with pytest.raises(LoginRefused) as refused:
            open_source(settings).preflight([f"{shop.schema}.*"])
        assert refused.value.hint
        assert PASSWORD not in str(refused.value)
        assert wrong not in str(refused.value)
