"""What both kinds of databases share about replicas on which tables are read (`ConnectionSettings.replicas`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TypeVar

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.errors import ExactnessError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings

Session = TypeVar("Session")

REMOVE = "remove it from `Read.read_conn_ids`"
_turns = count()


@contextmanager
def session_on_replica(
    settings: ConnectionSettings, opened: Callable[[ConnectionSettings], AbstractContextManager[Session]]
) -> Iterator[tuple[ConnectionSettings, Session]]:
    """Return a context with a session on one of the replicas, which take turns, and the settings of this replica.

    :param opened: opens a session with the settings of a replica.
    :raises SourceUnavailable: none of the replicas can be reached.
    """
    replicas, first = settings.replicas, os.getpid() + next(_turns)
    with ExitStack() as stack:
        for number in range(first, first + len(replicas)):
            replica = replicas[number % len(replicas)]
            try:
                session = stack.enter_context(opened(replica))
                break
            except SourceUnavailable:
                if number == first + len(replicas) - 1:
                    raise
        yield replica, session


def name_of(replica: ConnectionSettings) -> str:
    """Return the name of a replica in messages."""
    return f"{replica.host}:{replica.port}"


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise one error for all problems of a replica, if there are any.

    :raises ExactnessError: there are problems.
    """
    if problems:
        raise ExactnessError(
            "; ".join(problem.what for problem in problems), where=problems[0].where, hint=problems[0].hint
        )


def planned_where(plan: TablePlan, on_replica: bool) -> TablePlan:
    """Return the plan of a table with a reason that says where the table is read."""
    return replace(plan, reason=f"{plan.reason}; read {'on a replica' if on_replica else 'on the source'}")
