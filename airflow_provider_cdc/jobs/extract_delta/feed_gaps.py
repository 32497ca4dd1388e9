"""The gaps in the change feeds of a run: tables whose feed ends at the last copy, and begins anew at the run's copy.

See ``docs/design/changes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_provider_cdc.core.run.commit_record import Decision, decision_of, published_run
from airflow_provider_cdc.core.run.manifest import FeedGap, RunTable
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sinks.base import PublishedCopy
from airflow_provider_cdc.sinks.beside_copies import next_order


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
    """Return a number after those of all changes that consumers may have: the changes up to the copy of the run
    ``run_id``, and the changes in the lake.

    The lake may have greater numbers than this copy: another run may have published since, or this copy was made
    without changes. This copy cannot be rolled forward, perhaps because its records are gone. In this case, only the
    lake has the number.
    """
    before = 1
    # Only a record that is damaged or gone is passed over. If the store does not answer, the step tries again.
    with suppress(ManifestError):
        run = published_run(Storage(step.manifest.scratch), run_id) if run_id else None
        before = decision_of(run).next_order(str(entry.table.name)) if run is not None else 1
    return max(before, next_order(Storage(step.manifest.lake), entry.table.copy_name))


def first_order(step: Step, entry: RunTable, base: Decision) -> int:
    """Return the number of the first change after the copy of a table in the commit ``base``.

    If the run with this commit published no changes, the table may have changes of earlier runs. If feeds may begin
    anew (`FeedOptions`), the numbers go on after theirs, and one number is left out.
    """
    name = str(entry.table.name)
    if name in base.feeds or name in base.feed_gaps or not step.manifest.options.feeds.begins_anew:
        return base.next_order(name)
    following = next_order(Storage(step.manifest.lake), entry.table.copy_name)
    return following + 1 if following > 1 else 1


def gaps_of_latest(decision: Decision, copies: Mapping[TableName, PublishedCopy]) -> dict[str, FeedGap]:
    """Return the gaps in the feeds of the copies that are the latest ones of their tables. A copy that is not the
    latest one, such as the copy of a past day, ends no feed: the feed of the latest copy goes on."""
    latest = {str(name) for name, copy in copies.items() if copy.is_latest}
    return {name: gap for name, gap in decision.feed_gaps.items() if name in latest}


def say_feed_gaps(result: ConsolidateResult) -> None:
    """Print the gaps in the feeds of a published run."""
    for name, gap in result.feed_gaps.items():
        what = gap.described(result.position)
        log(f"consolidate: WARNING: {name}: no changes lead from the last copy to this copy: {what}")
