"""Every check is declared once, completely, in the place where the documents and the runner find it."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from operator import attrgetter

import pytest

from airflow_provider_cdc.core.checks import Check, Moment, problems_of
from airflow_provider_cdc.core.positions.kinds import KINDS
from airflow_provider_cdc.errors import Problem
from harness.documents.checks import declared_checks

PACKAGE = "airflow_provider_cdc"
SUBJECTS = ("run", *KINDS)


def test_a_check_says_what_it_protects_when_it_runs_and_how_it_looks() -> None:
    checks = [check for subject in SUBJECTS for check in declared_checks(subject)]
    ids = [check.id for check in checks]
    assert len(set(ids)) == len(ids)
    for check in checks:
        assert re.fullmatch(rf"(target|{'|'.join(SUBJECTS)})\.[a-z]+(-[a-z]+)*", check.id), check
        assert re.fullmatch(r"[A-Z][^\n|]*[^.]\.", check.protects), check
        assert re.fullmatch(r"[^\n]*[^.\n]", check.hint), check
        assert check.moments, check
        assert bool(check.when) == (check.ask is not None), check
        for raised in check.raised_by:
            module, _, name = raised.by.partition(":")
            assert callable(attrgetter(name)(import_module(f"{PACKAGE}.{module}"))), check


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_that_is_declared_is_in_the_registry_of_its_kind(kind: str) -> None:
    folder = import_module(f"{PACKAGE}.sources.{kind}.checks")
    declared = {
        check.id
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}.")
        for group in vars(import_module(module.name)).values()
        if isinstance(group, tuple)
        for check in group
        if isinstance(check, Check)
    }
    assert declared == {check.id for check in declared_checks(kind)}
    assert all(id_.startswith(f"{kind}.") for id_ in declared)


@pytest.mark.parametrize("kind", KINDS)
def test_what_preflight_and_each_step_ask_is_selected_from_the_registry(kind: str) -> None:
    asked = import_module(f"{PACKAGE}.sources.{kind}.checks.asked")
    in_a_run = {check.id for check in asked.OF_A_RUN if Moment.EACH_STEP in check.when}
    assert in_a_run == {check.id for check in declared_checks(kind) if Moment.EACH_STEP in check.when}
    before_it = {check.id for check in (*asked.OF_A_REQUEST, *getattr(asked, "OF_TABLES", ()))}
    # The checks of past positions come after it (`check_past`), and those of replicas are of other servers.
    others = {check.id for check in declared_checks(kind) if Moment.PREFLIGHT in check.when} - before_it
    assert all(id_.startswith((f"{kind}.past-", f"{kind}.read-replica", f"{kind}.log-replica")) for id_ in others)


def test_a_moment_at_which_nothing_is_asked_is_a_mistake_of_the_caller() -> None:
    check: Check[None] = Check("run.x", "X.", (Moment.PREFLIGHT,), "y", lambda context: [Problem("a", "b", "c")] * 2)
    assert problems_of([check, check], Moment.PREFLIGHT, None) == [Problem("a", "b", "c")]
    with pytest.raises(ValueError, match="no check runs before the commit"):
        problems_of([check], Moment.BEFORE_COMMIT, None)
