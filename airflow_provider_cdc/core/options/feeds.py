"""The options for change feeds. `core.options.run.StepOptions` includes them."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.arguments import of
from airflow_provider_cdc.core.options.words import BEGIN_ANEW as BEGIN_ANEW


@dataclass(frozen=True)
class FeedOptions:
    """What a run with the option ``changes`` does if the changes of a table cannot be published without a gap."""

    on_feed_gap: str = of("on_feed_gap")

    @property
    def begins_anew(self) -> bool:
        """Whether a table whose changes cannot be published without a gap is copied without changes."""
        return self.on_feed_gap == BEGIN_ANEW
