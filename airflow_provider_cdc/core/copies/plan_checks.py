"""Compares the plans of a run with the latest copies of its tables.

It finds the tables whose change feed ends at their last copy, and begins anew at the run's copy; and the merged tables
whose latest copy has shards that the run lacks. A merged table must have the rows of all of its shards. If a shard of
the latest copy is missing, its rows would disappear without having been deleted. A user must confirm that.
"""

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
VANISHED_HINT = (
    "restore the tables, or add them to `tables` or to the shards of the `Merge`. If they are gone for good, name "
    "them in `Merge.vanished_shards`: the next copy then lacks their rows"
)
_SHOWN = 5


class Heads(Protocol):
    """The lake; see ``sinks.base.Sink``."""

    def head(self, table: TableName) -> Copy | None: ...


def feeds_gapless(options: StepOptions) -> bool:
    """Return whether the run must publish the changes of each table without a gap."""
    return options.changes and not options.feeds.begins_anew


def with_feed_gaps(
    plans: Sequence[TablePlan],
    copies: Heads,
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


def _gap(plan: TablePlan, copies: Heads, refused: Mapping[TableName, str]) -> FeedGap | None:
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


def vanished(heads: Heads, plans: Sequence[TablePlan], confirmed: Collection[str]) -> dict[TableName, str]:
    """Return the merged tables whose latest copy has shards that the run does not copy, each with the reason why it
    cannot be published.

    :param confirmed: the names of shards that may be missing.
    :raises ManifestError: the record of a copy is damaged.
    """
    shards: dict[TableName, list[TablePlan]] = {}
    for plan in plans:
        if plan.shard is not None:
            shards.setdefault(plan.shard.merged, []).append(plan)
    found = {}
    for name, own in shards.items():
        head = heads.head(own[0].copy_name)
        if head is None:
            continue
        # A copy that is not merged has the rows of the table with its name.
        before = [str(shard["shard"]) for shard in head.shards] or [str(name)]
        missing = sorted({*before} - {str(plan.table) for plan in own} - {*confirmed})
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            found[name] = (
                f"its latest copy (run {head.run_id}) also has the rows of {', '.join(missing[:_SHOWN])}{more}, which "
                f"the run does not copy; its shards are {', '.join(str(plan.table) for plan in own[:_SHOWN])}"
                f"{', …' if len(own) > _SHOWN else ''}"
            )
    return found
