"""The task group that copies the shards of several sources, and publishes them as merged tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from airflow.providers.common.compat.sdk import AssetAlias, TaskGroup, XComArg

from airflow_provider_cdc.assets import copies_alias
from airflow_provider_cdc.core.shards.union import SOURCES
from airflow_provider_cdc.core.storage.uri import SOURCE_PLACEHOLDER
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.merged.check import CheckMergedOperator
from airflow_provider_cdc.operators.merged.publish import PublishMergedOperator
from airflow_provider_cdc.task_groups.snapshot import RETRYING, SnapshotTaskGroup

_WHY_NOT = {
    "source_conn_id": "the sources are in source_conn_ids",
    "tables": "the group copies the shards in merge, and no other tables",
    "format": "tables of several sources are merged as Parquet only",
    "catalog_conn_id": "tables of several sources are merged as Parquet only",
    "table_name": "tables of several sources are merged as Parquet only",
    "partition_by": "tables of several sources are merged as Parquet only",
    "sort_by": "tables of several sources are merged as Parquet only",
    "on_type_change": "tables of several sources are merged as Parquet only",
    "on_foreign_commit": "tables of several sources are merged as Parquet only",
    "changes": "the changes of shards are not united",
    "keep_days": "merged copies of several sources are kept by their number only: give keep",
    "prefix_group_id": "the ids of the tasks must begin with the ids of their groups",
}
"""Arguments of `SnapshotTaskGroup` that this group refuses, with the reasons."""
_GROUP_ARGUMENTS = ("default_args", "doc_md", "group_display_name", "parent_group", "tooltip", "dag")


class MergedSnapshotTaskGroup(TaskGroup):
    """Copy the shards of several sources, and publish them as merged tables::

        MergedSnapshotTaskGroup(
            source_conn_ids=["cdc_eu", "cdc_us"],
            merge={"shop.orders": ["shop_*.orders"]},
            target="s3://lake/raw",
            refresh="auto",
        )

    For each source, the group has a `SnapshotTaskGroup`, which copies its shards into a lake of its own, in the folder
    ``_sources`` of the target. The sources are read at the same time, each exactly as of its own position. The task
    ``check_merged`` checks, before the reads begin, that their shards can be merged. After the last source, the task
    ``publish_merged`` compares the keys of all shards, and publishes each merged table at once.

    :param source_conn_ids: the connections to the sources, of one kind. Their positions are recorded in this order.
    :param merge: the merged tables, each with its shards, as in `SnapshotTaskGroup`. Every source must have shards of
        each merged table.
    :param target: the folder to publish in. It must not contain ``{source}``.
    :param vanished_shards: sources (``cdc_eu``) and shards (``cdc_eu:shop_3.orders``) of the last copy that may be
        missing now.
    :param keep: the number of merged copies to keep; 0: all of them. Of the sources' own copies, one is kept.
    :param group_id: id of the group.
    :param options: other arguments of `SnapshotTaskGroup`, for all sources.
    :raises ConfigurationError: an argument cannot be used with several sources.
    """

    def __init__(
        self,
        *,
        source_conn_ids: Sequence[str],
        merge: Mapping[str, Sequence[str]],
        target: str,
        vanished_shards: Sequence[str] | None = None,
        keep: int | str = 0,
        group_id: str = "cdc_merged",
        **options: Any,
    ) -> None:
        given: dict[str, Any] = dict(options)
        sources, vanished = list(source_conn_ids), list(vanished_shards or ())
        _check(sources, merge, target, vanished, given)
        of_group = {name: given.pop(name) for name in _GROUP_ARGUMENTS if name in given}
        super().__init__(group_id=group_id, prefix_group_id=True, **of_group)
        self.default_args: dict[str, Any] = {**RETRYING, **(self.dag.default_args or {}), **self.default_args}
        patterns = list(dict.fromkeys(pattern for own in merge.values() for pattern in own))
        storage_conn_id = given.get("storage_conn_id", "")
        self.sources: dict[str, SnapshotTaskGroup] = {}
        with self:
            for source in sources:
                self.sources[source] = SnapshotTaskGroup(
                    source_conn_id=source,
                    tables=patterns,
                    target=f"{target.rstrip('/')}/{SOURCES}/{SOURCE_PLACEHOLDER}",
                    merge={name: list(own) for name, own in merge.items()},
                    vanished_shards=[
                        name.partition(":")[2] for name in vanished if name.partition(":")[0] == source and ":" in name
                    ],
                    # The next run needs the last copy only, and readers read the merged copies.
                    keep=1,
                    group_id=_id_of(source),
                    prefix_group_id=True,
                    **given,
                )
            groups = list(self.sources.values())
            self.check = CheckMergedOperator(
                task_id="check_merged",
                source_conn_ids=sources,
                plans={source: group.preflight.output["plan"] for source, group in self.sources.items()},
                target=target,
                vanished_shards=vanished,
                as_of=given.get("as_of", ""),
                on_table_error=given.get("on_table_error", "fail"),
                storage_conn_id=storage_conn_id,
                targets=given.get("targets"),
            )
            self.publish = PublishMergedOperator(
                task_id="publish_merged",
                runs={source: group.run_uri for source, group in self.sources.items()},
                target=target,
                vanished_shards=vanished,
                keep=keep,
                spark_conn_id=given.get("spark_conn_id", "spark_default"),
                conf=given.get("spark_conf"),
                storage_conn_id=storage_conn_id,
                targets=given.get("targets"),
                outlets=[self.copies],
            )
        for group in groups:
            # The shards of one source are not the merged table, so they are not announced.
            group.consolidate.outlets = []
            group.consolidate.reports_lineage = False
            group.preflight >> self.check >> group.lock_and_record
            group.consolidate >> self.publish
        # Rows that are only moved from earlier to later sources, and copied before they are deleted, are then never
        # missing.
        for group, following in pairwise(groups):
            group.lock_and_record >> following.lock_and_record

    @property
    def copies(self) -> AssetAlias:
        """The asset alias of this group; see `SnapshotTaskGroup.copies`."""
        return copies_alias(self.dag.dag_id, str(self.group_id))

    @property
    def published(self) -> XComArg:
        """The URI of the files of each merged table, by its name."""
        return self.publish.output["published"]

    @property
    def positions(self) -> XComArg:
        """The position of each source, by its connection."""
        return self.publish.output["positions"]


def _check(
    sources: Sequence[str], merge: Any, target: Any, vanished: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Check the arguments of a group.

    :raises ConfigurationError: an argument is wrong.
    """
    for name, why in _WHY_NOT.items():
        if options.get(name) not in (None, False, "", "parquet"):
            raise ConfigurationError(f"MergedSnapshotTaskGroup does not have the argument {name}", hint=why)
    if not isinstance(merge, Mapping) or not merge:
        raise ConfigurationError(
            "merge must be known when the DAG is parsed", hint='{"shop.orders": ["shop_*.orders"]}'
        )
    if not isinstance(target, str) or SOURCE_PLACEHOLDER in target:
        raise ConfigurationError("the target of merged tables is one folder", hint=f"leave out {SOURCE_PLACEHOLDER}")
    if len({_id_of(source) for source in sources}) < max(2, len(sources)):
        hint = "for one source, use SnapshotTaskGroup with merge"
        raise ConfigurationError("source_conn_ids must name two or more different connections", hint=hint)
    for source in sources:
        if ":" in source or "{{" in source or "{%" in source:
            what = f"{source!r} cannot be one of the sources"
            raise ConfigurationError(what, hint="give the ids of connections, without colons and templates")
    for name in vanished:
        source, colon, shard = name.partition(":")
        if (colon and (source not in sources or "." not in shard)) or (not colon and source in sources):
            what = f"{name!r} in vanished_shards is neither a source that is gone nor a shard of a source"
            raise ConfigurationError(what, hint="write cdc_eu, or cdc_eu:shop_3.orders")


def _id_of(source: str) -> str:
    """Return the id of the group of a source."""
    return re.sub(r"[^\w-]", "_", source)
