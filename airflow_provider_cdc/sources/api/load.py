"""The load of a server, for the governor of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError, Problem, TransientError
from airflow_provider_cdc.sources.api.source import Source

THREADS_RUNNING, REPLICA_LAG = "threads_running", "replica_lag_seconds"
HISTORY_LIST, OLDEST_XMIN = "history_list_length", "oldest_xmin_age"
MEASURE_SECONDS = 5
"""The maximum number of seconds that the server may take for a measurement."""
_QUERY = re.compile(r"\s*SELECT\b", re.IGNORECASE)


def is_query(signal: str) -> bool:
    """Return whether a signal is an operator's own query."""
    return bool(_QUERY.match(signal))


def one_number(signal: str, rows: Sequence[Sequence[object]]) -> float:
    """Return the number in the result of a query.

    :raises ConfigurationError: the result is not one number.
    """
    try:
        ((found,),) = rows
        number = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if number != number:
        raise ConfigurationError(
            "the query does not return one row with one number",
            where=f"parameter governor, {signal}",
            hint="correct the query; COALESCE(…, 0) replaces a NULL",
        )
    return number


def check_load(source: Source, signals: Collection[str]) -> None:
    """Check, before a run begins, that each signal can be measured.

    :raises PreflightError: some signals cannot be measured. The error lists all of them.
    """
    problems = []
    for signal in signals:
        where = f"parameter governor, {signal}"
        if not source.load_signals:
            problems.append(Problem(where, "the load of this source cannot be measured", "leave `governor` empty"))
        elif signal not in source.load_signals and not is_query(signal):
            known = f"use one of {', '.join(sorted(source.load_signals))}, or a query that begins with SELECT"
            problems.append(Problem(where, f"a {source.kind} source has no signal of this name", known))
        else:
            try:
                source.load([signal])
            except TransientError:
                raise
            except CdcError as error:
                problems.append(Problem(where, error.message, error.hint))
    if problems:
        raise PreflightError(problems)
