"""The change feeds of tables that are read again, because they were altered during the run."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_cdc.core.copies.feed_gaps import BEGINS_ANEW
from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.plan import FeedGap


def read_again(manifest: Manifest, entry: RunTable, why: str) -> RunTable:
    """Return a table of ``manifest`` as it is when it is read again. If the run publishes changes and would have rolled
    the table's last copy forward, the feed of the table ends at this copy."""
    gap, reason = entry.feed_gap, f"read again: {why}; {entry.reason}"
    if gap is not None:
        gap = gap.with_reason(why)
    elif manifest.options.changes and entry.base:
        gap = FeedGap(entry.base, manifest.bases[entry.base].position, why)
        reason += BEGINS_ANEW
    return replace(entry, base="", read_in="", reason=reason, feed_gap=gap)
