"""What others do to the source while a run works: schema changes, and the loss of log or of slots."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tests.chaos.faults import STEPS
from tests.chaos.schema_changes import SchemaChange, draw
from tests.chaos.worlds import LOSSES, Busy, Refused, World

BEFORE = "before the run"
PATIENCE = 90.0
"""Seconds. A try that stands still may hold a lock for some seconds."""

_WITHIN = {BEFORE: 0.0, "snapshot": 6.0, "extract_delta": 1.5, "consolidate": 1.0}
"""Seconds that a step takes, about."""


@dataclass(frozen=True)
class Act:
    """An act at an instant of ``step``: a schema change, or the loss of log (`worlds.LOSSES`)."""

    step: str
    seconds: float
    change: SchemaChange | None = None
    loss: str = ""

    @property
    def kind(self) -> str:
        return f"ddl: {self.change.name}" if self.change else self.loss

    def __str__(self) -> str:
        return f"{self.change or self.loss} in {self.step} after {self.seconds:.2f} s"


def draw_acts(chance: random.Random, kind: str, *, before: bool) -> list[Act]:
    """Draw up to three schema changes, and in some cases a loss, for a run on a database of this kind.

    :param before: draw acts before the run, too, because an earlier run has made copies.
    """
    acts = []
    steps = [*(BEFORE for _ in range(2 if before else 0)), *("snapshot" for _ in range(4)), *STEPS[1:]]
    for number in range(1, chance.choice([1, 1, 2, 3]) + 1):
        step = chance.choice(steps)
        acts.append(Act(step, chance.uniform(0.0, _WITHIN[step]), change=draw(chance, kind, number)))
    if chance.random() < 0.35:
        step, losses = chance.choice(steps), LOSSES[kind]
        acts.append(
            Act(step, chance.uniform(0.0, _WITHIN[step]), loss=chance.choices([*losses], [*losses.values()])[0])
        )
    return sorted(acts, key=lambda act: act.seconds)


class Acting:
    """Does the acts of a run in ``schema``, in threads. ``done`` are those that had an effect."""

    def __init__(self, world: World, schema: str, acts: list[Act], tell: Callable[[str], None]) -> None:
        self._world = world
        self._schema = schema
        self._acts = acts
        self._tell = tell
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self.done: list[Act] = []

    def before(self) -> None:
        """Do the acts before the run."""
        for act in self._acts:
            if act.step == BEFORE:
                self._do(act)

    @contextmanager
    def during(self, step: str) -> Iterator[None]:
        """Do the acts of a step while it works. They may take longer than the step."""
        acts = [act for act in self._acts if act.step == step]
        if acts:
            thread = threading.Thread(target=self._run, args=(acts,), daemon=True)
            thread.start()
            self._threads.append(thread)
        yield

    def settle(self) -> None:
        """Wait for all acts that were begun."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, acts: list[Act]) -> None:
        began = time.monotonic()
        try:
            for act in acts:
                time.sleep(max(0.0, began + act.seconds - time.monotonic()))
                self._do(act)
        except BaseException as error:
            self._errors.append(error)

    def _do(self, act: Act) -> None:
        self._tell(f"begins: {act}")
        if act.change is None:
            done = self._patiently(lambda: self._world.purge(act.loss))
            self._tell(f"done: {act.loss}: {done}")
            self.done.append(act)
            return
        schema = self._schema
        told = [self._patiently(partial(self._alter, schema, statement)) for statement in act.change.statements]
        self._tell(f"done: {act.change.name} {' '.join(told)}".strip())
        if not told[-1]:
            self.done.append(act)

    def _alter(self, schema: str, statement: str) -> str:
        self._world.alter(schema, statement)
        return ""

    def _patiently(self, do: Callable[[], str]) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return do()
            except Refused as error:
                return f"refused: {error}"
            except Busy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
