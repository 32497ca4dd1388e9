"""Compares the shards of merged tables with the shards of their latest copies.

A merged table must have the rows of all of its shards. If a shard of the latest copy is missing, its rows would
disappear without having been deleted. A user must confirm that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from airflow_provider_cdc.core.copies.head import Copy
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import TableName

_SHOWN = 5


class ShardHeads(Protocol):
    """The lake; see ``sinks.base.Sink``."""

    def head(self, table: TableName) -> Copy | None: ...


def vanished(heads: ShardHeads, plans: Sequence[TablePlan], confirmed: Collection[str]) -> dict[TableName, str]:
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


VANISHED_HINT = (
    "restore the tables, or add them to `tables` and `merge`. If they are gone for good, name them in "
    "`vanished_shards`: the next copy then lacks their rows"
)
