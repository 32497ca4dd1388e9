"""Checks as declared things: what each one protects, when it runs, and how it asks.

Each source declares its checks in its folder ``checks``; the target and the run have theirs in ``operators/checks`` and
``jobs/checks``. What runs at a moment is selected from these declarations, so no step keeps a list of its own. The
tables in docs/design/checks.md are generated from them (``dev/docs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from airflow_provider_cdc.errors import Problem

C = TypeVar("C", contravariant=True)


class Moment(Enum):
    """When a check runs. The value is what the documents call it."""

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
    """A check that is part of other work.

    ``by``: ``module:function`` of what raises the error, or makes it. The modules are those of this package, without
    its name.
    """

    when: Moment
    by: str


@dataclass(frozen=True)
class Check(Generic[C]):
    """One check.

    ``id``
        names it for good: the kind of source, ``target`` or ``run``, a dot, and the subject.
    ``protects``
        what holds as long as the check finds nothing: one sentence.
    ``when``
        the moments at which it is asked.
    ``hint``
        what to do if it finds something. A problem or an error may have a more exact one.
    ``ask``
        yields the problems that there are in a context. It raises an error of its own where a run that has begun has to
        tell what became of the source: another server, a log that is gone.
    ``raised_by``
        what looks at other moments, while it does its own work, such as reading the log.
    """

    id: str
    protects: str
    when: tuple[Moment, ...]
    hint: str
    ask: Callable[[C], Iterable[Problem]] | None = None
    raised_by: tuple[Raised, ...] = ()

    @property
    def moments(self) -> list[Moment]:
        """All moments at which it runs, in the order of a run."""
        all_of_it = {*self.when, *(raised.when for raised in self.raised_by)}
        return [moment for moment in Moment if moment in all_of_it]


def problems_of(checks: Sequence[Check[C]], moment: Moment, context: C) -> list[Problem]:
    """Ask those of ``checks`` that run at ``moment``, in their order. A problem that several of them find is told once.

    :raises CdcError: a check raised it.
    :raises ValueError: none of the checks runs at that moment: whoever asks means other checks, or another moment.
    """
    questions = [check.ask for check in checks if check.ask is not None and moment in check.when]
    if not questions:
        raise ValueError(f"no check runs {moment.value}")
    return list(dict.fromkeys(problem for ask in questions for problem in ask(context)))
