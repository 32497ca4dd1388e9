"""The options for change feeds. `core.options.run.StepOptions` includes them."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import FOLDED, one_of, option

FAIL, BEGIN_ANEW = "fail", "begin_anew"


@dataclass(frozen=True)
class FeedOptions:
    """What a run with the option ``changes`` does if the changes of a table cannot be published without a gap."""

    on_feed_gap: str = option(
        FAIL,
        accepts=one_of(
            (FAIL, BEGIN_ANEW),
            (
                "fail: stop the run",
                "begin_anew: publish the copy without changes, and report it",
            ),
        ),
        title="Tables whose changes have a gap",
        section=FOLDED,
        help="With `changes`: what a run does if the changes since the last copy of a table cannot be published. "
        "`fail` stops the run. `begin_anew` copies the table as without `changes`. The changes then begin anew at this "
        "copy. The plan, the logs, the report, the event and the copy say so.",
        example="fail or begin_anew",
    )

    @property
    def begins_anew(self) -> bool:
        """Whether a table whose changes cannot be published without a gap is copied without changes."""
        return self.on_feed_gap == BEGIN_ANEW
