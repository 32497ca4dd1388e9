"""Finds the tables of a run whose change feed ends at their last copy, and begins anew at the run's copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from airflow_provider_cdc.core.copies.head import Copy, position_of
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import FeedGap, TablePlan
from airflow_provider_cdc.core.tables.table import Evolution, TableName
from airflow_provider_cdc.errors import ManifestError

BEGINS_ANEW = "; its changes begin anew at this copy"
"""Added to the reason for the way in which a table with a gap in its feed is read."""
IF_LATEST = ", if its copy becomes the latest copy of the table"
"""Added if the run copies the past: such a copy ends no feed if a later copy is published."""


class FeedHeads(Protocol):
    """The lake; see ``sinks.base.Sink``."""

    def head(self, table: TableName) -> Copy | None: ...


def feeds_gapless(options: StepOptions) -> bool:
    """Return whether the run must publish the changes of each table without a gap."""
    return options.changes and not options.feeds.begins_anew


def with_feed_gaps(
    plans: Sequence[TablePlan],
    copies: FeedHeads,
    refused: Mapping[TableName, str],
    new: Collection[TableName],
    options: StepOptions,
) -> list[TablePlan]:
    """Return the plans, each with the gap in the feed of its table.

    :param refused: the tables whose last copy cannot be rolled forward, with the reasons.
    :param new: the tables without a copy. Their first feed begins at the run's copy.
    """
    if not options.changes:
        return list(plans)
    return [
        plan
        if (gap := None if plan.table in new else _gap(plan, copies, refused)) is None
        else with_gap(plan, gap, past=bool(options.as_of))
        for plan in plans
    ]


def with_gap(plan: TablePlan, gap: FeedGap, *, past: bool = False) -> TablePlan:
    """Return the plan of a table with a gap in its feed.

    :param past: whether the run copies the past.
    """
    return replace(plan, feed_gap=gap, reason=plan.reason + BEGINS_ANEW + (IF_LATEST if past else ""))


def _gap(plan: TablePlan, copies: FeedHeads, refused: Mapping[TableName, str]) -> FeedGap | None:
    if plan.base:
        why = carried_over(plan.evolution)
        return FeedGap(plan.base, plan.base_position, f"the table was altered: {why}") if why else None
    # The record of the last copy may be damaged, and that may be the reason.
    with suppress(ManifestError):
        head = copies.head(plan.copy_name)
        return None if head is None else FeedGap(head.run_id, position_of(head), refused[plan.table])
    return FeedGap("", "", refused[plan.table])


def carried_over(evolution: Evolution | None) -> str:
    """Return the statements over which a copy is rolled forward, with their places in the log. Empty: none of them
    changes the columns, so all changes of rows are in the log, and have the present columns."""
    return "" if evolution is None else "; ".join(f"{era.statement} ({era.begins})" for era in evolution.eras)
