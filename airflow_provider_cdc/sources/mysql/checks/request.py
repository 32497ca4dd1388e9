"""Checks of the patterns and options of a run."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import RequestContext
from airflow_provider_cdc.sources.planning.request_checks import request_problems


def _options(context: RequestContext) -> Iterable[Problem]:
    return request_problems("mysql", context.patterns, context.options)


def _names(context: RequestContext) -> Iterable[Problem]:
    return context.unresolved


REQUEST: tuple[Check[RequestContext], ...] = (
    Check(
        "mysql.options",
        "MySQL sources support the given options.",
        (Moment.PREFLIGHT,),
        "choose one of the values that the message lists",
        _options,
    ),
    Check(
        "mysql.tables-exist",
        "Each pattern matches a table.",
        (Moment.PREFLIGHT,),
        "correct the pattern, or grant the user SELECT on the tables that it should match",
        _names,
    ),
)
