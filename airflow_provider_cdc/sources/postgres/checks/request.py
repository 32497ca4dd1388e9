"""Checks of a run's options and table patterns."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.planning.request_checks import request_problems
from airflow_provider_cdc.sources.postgres.checks.context import RequestContext


def _options(context: RequestContext) -> Iterable[Problem]:
    return request_problems("postgres", context.patterns, context.options)


def _names(context: RequestContext) -> Iterable[Problem]:
    return context.unresolved


REQUEST: tuple[Check[RequestContext], ...] = (
    Check(
        "postgres.options",
        "This kind of source supports the options.",
        (Moment.PREFLIGHT,),
        "choose one of the values that the message lists",
        _options,
    ),
    Check(
        "postgres.tables-exist",
        "Each pattern names a table.",
        (Moment.PREFLIGHT,),
        "correct the pattern, or the connection's database",
        _names,
    ),
)
