"""Generates the tables of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.core.positions.kinds import KINDS

_MODULES: Mapping[str, Sequence[str]] = {
    "run": ("operators.planning.checks", "jobs.checks"),
    **{kind: (f"sources.{kind}.checks.registry",) for kind in KINDS},
}


_LETTERS: Mapping[Moment, str] = {
    Moment.PREFLIGHT: "P",
    Moment.POSITION_FIXED: "I",
    Moment.EACH_STEP: "T",
    Moment.EACH_SESSION: "S",
    Moment.READING: "R",
    Moment.LOG_READ: "L",
    Moment.READS_ENDED: "E",
    Moment.BEFORE_COMMIT: "C",
    Moment.ROLL_FORWARD: "F",
}
"""The letter of each moment in the tables."""


def moment_table() -> Iterator[Sequence[str]]:
    """Yield the moments with their letters, the header first."""
    yield "", "when"
    for moment in Moment:
        yield _LETTERS[moment], moment.value


def declared_checks(subject: str) -> list[Check[Any]]:
    """Return the checks of a kind of source, or of runs and their targets (``run``)."""
    modules = [import_module(f"airflow_provider_cdc.{name}") for name in _MODULES[subject]]
    return [check for module in modules for check in module.CHECKS]


def _table(subject: str) -> Iterator[Sequence[str]]:
    yield "check", "what it protects", "when"
    for check in declared_checks(subject):
        yield f"`{check.id}`", check.protects, "".join(_LETTERS[moment] for moment in check.moments)


CHECK_TABLES: Mapping[str, Callable[[], Iterable[Sequence[str]]]] = {
    "moments": moment_table,
    **{f"{subject} checks": partial(_table, subject) for subject in _MODULES},
}
