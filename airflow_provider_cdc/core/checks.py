"""Declares checks. A declaration has the condition that the check protects, the moments at which the check runs, and
the function that performs the check.

Each source declares its checks in its folder ``checks``. The checks of the target and the run are in
``operators/planning/checks`` and ``jobs/checks``. The checks for each moment are selected from these declarations, so
no step has a list of checks. The tables in docs/design/checks.md are generated from the declarations (``dev/docs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from airflow_provider_cdc.errors import Problem

C = TypeVar("C", contravariant=True)


class Moment(Enum):
    """A moment at which checks run. The value is the name of the moment in the documentation."""

    PREFLIGHT = "preflight"
    POSITION_FIXED = "once the position is fixed"
    EACH_STEP = "each step"
    EACH_SESSION = "each session"
    READING = "while rows are read"
    LOG_READ = "while the log is read"
    READS_ENDED = "after the reads"
    BEFORE_COMMIT = "before the commit"
    ROLL_FORWARD = "when a copy is rolled forward"


@dataclass(frozen=True)
class Raised:
    """A function that performs a check as a part of other work.

    ``by`` names the function that raises or creates the error, as ``module:function``. The module's name is relative to
    this package.
    """

    when: Moment
    by: str


@dataclass(frozen=True)
class Check(Generic[C]):
    """One check.

    ``id``
        the permanent name. It begins with the kind of source, ``target`` or ``run``. A dot and the subject follow.
    ``protects``
        one sentence: the condition that holds as long as the check finds no problem.
    ``when``
        the moments at which ``ask`` is called.
    ``hint``
        what to do if the check finds a problem. The problem or error may have a more specific hint.
    ``ask``
        yields the problems that it finds in a context. If a run has begun, it may raise an error instead, for example
        because the server was replaced or the log is gone.
    ``raised_by``
        functions that perform the check at other moments, as a part of other work, such as reading the log.
    """

    id: str
    protects: str
    when: tuple[Moment, ...]
    hint: str
    ask: Callable[[C], Iterable[Problem]] | None = None
    raised_by: tuple[Raised, ...] = ()

    @property
    def moments(self) -> list[Moment]:
        """All moments at which the check runs, in the order of a run."""
        all_of_it = {*self.when, *(raised.when for raised in self.raised_by)}
        return [moment for moment in Moment if moment in all_of_it]


def problems_of(checks: Sequence[Check[C]], moment: Moment, context: C) -> list[Problem]:
    """Run the checks in ``checks`` that are declared for ``moment``, in order, and return their problems. Equal
    problems are returned once.

    :raises CdcError: a check raised an error.
    :raises ValueError: no check is declared for this moment, so the caller passed wrong checks or a wrong moment.
    """
    questions = [check.ask for check in checks if check.ask is not None and moment in check.when]
    if not questions:
        raise ValueError(f"no check runs {moment.value}")
    return list(dict.fromkeys(problem for ask in questions for problem in ask(context)))
