"""The faults of chaos tests, and schedules of them, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

STEPS = ("snapshot", "extract_delta", "consolidate")

EVERYWHERE = {
    "kill_all": 3,
    "kill_driver": 2,
    "kill_jvm": 1,
    "kill_worker": 2,
    "freeze": 4,
    "twice": 3,
    "source_crash": 2,
}
"""Each kind of fault and its weight.

``kill_…``
    SIGKILL for all processes of the try, its Python driver, its JVM, or one Python worker.
``freeze``
    SIGSTOP for all its processes. It is taken for dead and the step is tried again; later it wakes up and goes on where
    it was, perhaps while the run is in another step.
``twice``
    Two tries of the step at the same time, from the start.
``source_crash``
    The server is killed, with what it had not written to its log, and started again.
"""
WHILE_READING = {"cut": 3, "outage": 3, "source_slow": 2}
"""``cut``, ``outage``, ``source_slow``
    All connections to the source end at once; for some seconds no new one is accepted; all that is asked is delayed.
"""
ON_DISK = {"no_space": 3, "disk_full": 2, "disk_denied": 2, "no_files": 2}
"""``no_space``
    For a moment the disk is full, to the last byte.
``disk_full``
    For a moment nothing larger than a few bytes can be written.
``disk_denied``
    For a moment nothing can be made, moved or removed in the lake.
``no_files``
    For a moment our code can open nothing: a limit of the system is reached.
"""
ON_STORE = {"store_cut": 3, "store_outage": 3, "store_busy": 4, "store_broken": 4, "store_slow": 5, "store_denied": 2}
"""``store_cut``, ``store_outage``
    As ``cut`` and ``outage``, of the store that the lake lies in.
``store_busy``, ``store_broken``, ``store_denied``
    For some seconds it answers whatever it is asked with the HTTP status 503, 500 or 403.
``store_slow``
    All that it is asked is delayed, so that to list or to move takes seconds.
"""

_LONGEST = {"snapshot": 3.0, "extract_delta": 1.5, "consolidate": 1.0}
"""Seconds that a step takes on a disk, about: faults come within them."""
_LONGER_ON_STORES = 4.0
"""How many times as long it takes on a store, where tries wait for one another."""
_MOST_CHANGES = {"snapshot": 24, "extract_delta": 9, "consolidate": 20}
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


def draw(chance: random.Random, *, on_store: bool) -> list[Fault]:
    """One to three faults for a run into a store, or onto a disk."""
    faults: dict[tuple[str, int], Fault] = {}
    for _ in range(chance.choice([1, 2, 2, 3])):
        step = chance.choice(STEPS)
        kinds = EVERYWHERE | (ON_STORE if on_store else ON_DISK) | (WHILE_READING if step != "consolidate" else {})
        attempt = sum(fault.step == step for fault in faults.values())
        # To list a store often enough to see each change would be a fault of its own.
        by_time = on_store or chance.random() < 0.3
        longest = _LONGEST[step] * (_LONGER_ON_STORES if on_store else 1.0)
        faults[step, attempt] = Fault(
            step,
            attempt,
            chance.choices(list(kinds), list(kinds.values()))[0],
            chance.uniform(0.0, longest) if by_time else None,
            None if by_time else chance.randrange(1, _MOST_CHANGES[step]),
            chance.choice([0.3, 1.0, 3.0, 6.0]),
        )
    return list(faults.values())
