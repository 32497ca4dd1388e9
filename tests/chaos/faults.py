"""What can go wrong, and when: schedules drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

STEPS = ("snapshot", "extract_delta", "consolidate")

KINDS = {
    "kill_group": 3,
    "kill_driver": 2,
    "kill_jvm": 1,
    "kill_worker": 2,
    "freeze": 4,
    "twice": 3,
    "cut": 2,
    "outage": 2,
    "disk": 2,
    "source_crash": 2,
}
"""Each kind of fault and its weight.

``kill_…``
    SIGKILL for the whole process group of the try, its Python driver, its JVM, or one Python worker.
``freeze``
    SIGSTOP for the whole group. Whoever waits for it takes it for dead and tries again; it wakes up later and goes on
    where it was, perhaps in another step of the run.
``twice``
    Two tries of the step at the same time, from the start.
``cut``, ``outage``
    All connections to the source end at once; and for some seconds no new one is accepted.
``disk``
    For a moment nothing larger than a few bytes can be written.
``source_crash``
    The server is killed, with what it had not written to its log, and started again.
"""

_LONGEST = {"snapshot": 3.0, "extract_delta": 1.5, "consolidate": 1.0}
"""Seconds that a step takes, about: faults come within them."""
_MOST_CHANGES = {"snapshot": 40, "extract_delta": 12, "consolidate": 30}
"""New files that a step makes, about: other faults come right after one of them."""


@dataclass(frozen=True)
class Fault:
    """``kind`` at an instant of the try ``attempt`` of ``step``: after ``seconds``, or as soon as so many files of the
    lake have come or gone (``changes``), whichever is not None. ``lasts``: seconds until it is over, if it has an end.
    """

    step: str
    attempt: int
    kind: str
    seconds: float | None
    changes: int | None
    lasts: float

    def __str__(self) -> str:
        when = f"after {self.seconds:.2f} s" if self.seconds is not None else f"at change {self.changes}"
        return f"{self.kind} in try {self.attempt} of {self.step} {when}, for {self.lasts:.1f} s"


def draw(chance: random.Random) -> list[Fault]:
    """One to three faults."""
    faults: dict[tuple[str, int], Fault] = {}
    for _ in range(chance.choice([1, 2, 2, 3])):
        step = chance.choice(STEPS)
        attempt = sum(fault.step == step for fault in faults.values())
        by_time = chance.random() < 0.5
        faults[step, attempt] = Fault(
            step,
            attempt,
            chance.choices(list(KINDS), list(KINDS.values()))[0],
            chance.uniform(0.0, _LONGEST[step]) if by_time else None,
            None if by_time else chance.randrange(1, _MOST_CHANGES[step]),
            chance.choice([0.3, 1.0, 3.0, 8.0]),
        )
    return list(faults.values())
