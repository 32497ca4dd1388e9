"""Notes where the log ends when the last part of a table has been read.

A schema change that lies in the log after this end comes after the read. So the rows of the read can be carried over it
(`jobs.restart.altered`). It does not matter how late the end is noted: a later end only makes fewer schema changes fit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.parts import Part

LOOK_SECONDS = 10.0


class EndsOfReads:
    """Notes the ends in ``step.ends``.

    :param missing: the parts that are to be read now. No other parts are missing.
    :param done: the parts that were read, by number. It grows.
    """

    def __init__(self, step: Step, missing: Sequence[Part], done: Mapping[int, object]) -> None:
        self._step, self._done = step, done
        self._tables = {str(entry.table.name): entry.table for entry in step.tables if entry.is_read}
        self._missing: dict[str, set[int]] = {name: set() for name in self._tables}
        self._last = -LOOK_SECONDS
        for part in missing:
            name = str(step.tables[part.table].table.name)
            self._missing[name].add(part.number)
            # The table is read again, so what was noted does not count.
            step.ends.pop(name, None)

    def poll(self, *, now: bool = False) -> None:
        """Note the ends of the tables that were read since the last call, unless this call was a moment ago."""
        step = self._step
        if not (now or time.monotonic() - self._last >= LOOK_SECONDS):
            return
        # The reads end first, and then the log is asked for its end.
        names = [name for name, left in self._missing.items() if name not in step.ends and left <= self._done.keys()]
        if names:
            self._last = time.monotonic()
            # Without its end, a table that is altered is read again.
            with suppress(CdcError):
                ends = step.source.ends_of_reads([self._tables[name] for name in names])
                step.ends |= {str(name): str(end) for name, end in ends.items()}
