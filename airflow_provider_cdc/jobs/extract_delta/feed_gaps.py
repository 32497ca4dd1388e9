"""The gaps in the change feeds of a run: tables whose feed ends at the last copy, and begins anew at the run's copy.

See ``docs/design/changes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_provider_cdc.core.run.commit_record import Decision, decision_of, published_run
from airflow_provider_cdc.core.run.feed import FeedGap
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sinks.base import PublishedCopy
from airflow_provider_cdc.sinks.feeds import read_gap


def feed_gaps(
    step: Step, copied: Sequence[int], refused: Mapping[int, str]
) -> tuple[dict[int, FeedGap], dict[int, str]]:
    """Return the gaps in the feeds of the ``copied`` tables, and the reasons why other tables are left out.

    :param refused: the tables whose changes cannot be published, with the reasons.
    """
    manifest = step.manifest
    gaps = {index: gap for index in copied if (gap := step.tables[index].feed_gap) is not None}
    if manifest.options.feeds.begins_anew:
        for index, why in refused.items():
            base = step.tables[index].base
            gaps[index] = FeedGap(base, manifest.bases[base].position, why)
        refused = {}
    numbered = {index: replace(gap, first=_first(step, step.tables[index], gap)) for index, gap in gaps.items()}
    return numbered, dict(refused)


def _first(step: Step, entry: RunTable, gap: FeedGap) -> int:
    """Return the number of the first change after a gap. The numbers go on, so that they always increase. One number is
    left out, so that a reader that checks the numbers of the changes notices the gap."""
    return _next_order(step, entry, gap.base) + 1


def _next_order(step: Step, entry: RunTable, run_id: str) -> int:
    """Return the number of the first change after the copy of the run ``run_id``.

    This copy cannot be rolled forward, perhaps because its records are gone. In this case, the lake has the number.
    """
    with suppress(CdcError, OSError):
        return decision_of(published_run(Storage(step.manifest.scratch), run_id)).next_order(str(entry.table.name))
    lake, name = Storage(step.manifest.lake), entry.table.copy_name
    with suppress(CdcError, OSError):
        if (feed := step.sink.feed(run_id, name)) is not None:
            return feed.first_order + feed.rows
        if (gap := read_gap(lake, name, run_id)) is not None:
            return gap.first_order
    return 1


def gaps_of_latest(decision: Decision, copies: Mapping[TableName, PublishedCopy]) -> dict[str, FeedGap]:
    """Return the gaps in the feeds of the copies that are the latest ones of their tables. A copy that is not the
    latest one, such as the copy of a past day, ends no feed: the feed of the latest copy goes on."""
    latest = {str(name) for name, copy in copies.items() if copy.is_latest}
    return {name: gap for name, gap in decision.feed_gaps.items() if name in latest}


def say_feed_gaps(result: ConsolidateResult) -> None:
    """Print the gaps in the feeds of a published run."""
    for name, gap in result.feed_gaps.items():
        what = gap.described(result.position)
        say(f"consolidate: WARNING: {name}: no changes lead from the last copy to this copy: {what}")
