"""The options that limit the load of a run on its source. An operator can change these limits while the run works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from airflow_provider_cdc.core.options.declare import COUNT_OR_NONE, FOLDED, Accepted, option
from airflow_provider_cdc.counted import counted

_Threshold = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
THRESHOLDS = Accepted(
    "an object with a threshold, a number of at least 0, for each signal or SELECT; or null",
    dict[Annotated[str, msgspec.Meta(pattern=r"\S")], _Threshold] | None,
    {"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": 0}},
    lambda value: {str(name): float(threshold) for name, threshold in (value or {}).items()},
)


@dataclass(frozen=True)
class LimitOptions:
    """The limits with which a run begins."""

    max_reads: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Concurrent reads",
        section=FOLDED,
        help="Maximum number of tasks that read the source at the same time. 0: as many as Spark has slots. It can be "
        "changed while the run works.",
        example="a number such as 2",
    )
    max_rows_per_second: int = option(
        0,
        accepts=COUNT_OR_NONE,
        title="Rows per second",
        section=FOLDED,
        help="Maximum number of rows that all tasks together read from the tables per second, on average. A task "
        "pauses between two chunks, so the chunks of the run are smaller with this option. 0: no limit. It can be "
        "changed while the run works.",
        example="a number such as 50000",
    )
    governor: Mapping[str, float] | None = option(
        None,
        accepts=THRESHOLDS,
        help="Numbers of the source to watch, each with a threshold. While a number is above its threshold, the run "
        "reads more and more slowly, and then pauses. The names are `threads_running`, `replica_lag_seconds`, "
        "`history_list_length` (MySQL) and `oldest_xmin_age` (PostgreSQL). A key that begins with `SELECT` is a query "
        "that returns one number.",
        example='an object such as {"threads_running": 40, "SELECT seconds_behind FROM ops.heartbeat": 5}',
    )

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds of the governor, by signal."""
        return dict(self.governor or {})

    def told(self) -> str:
        """Return the limits in words; empty: there are none."""
        told = [
            *([f"at most {counted(self.max_reads, 'read')} at a time"] if self.max_reads else []),
            *([f"at most {counted(self.max_rows_per_second, 'row')} per second"] if self.max_rows_per_second else []),
            *(f"slower while {signal} is above {threshold:g}" for signal, threshold in self.thresholds.items()),
        ]
        return ", ".join(told)


def chunk_rows_within(limits: LimitOptions, chunk_rows: int) -> int:
    """Return the number of rows per chunk with which a limit of rows per second is kept without long pauses."""
    if not limits.max_rows_per_second:
        return chunk_rows
    return min(chunk_rows, max(FEWEST_ROWS, limits.max_rows_per_second * PACED_SECONDS))


FEWEST_ROWS = 100
"""The least number of rows per chunk to which a limit of rows per second leads."""
PACED_SECONDS = 2
"""A chunk has about as many rows as the limit allows in this number of seconds."""
