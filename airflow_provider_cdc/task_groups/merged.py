"""The task group that copies the shards of several sources, and publishes them as merged tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AssetAlias, TaskGroup, XComArg

from airflow_provider_cdc.assets import copies_alias
from airflow_provider_cdc.core.options.arguments import options_by_name
from airflow_provider_cdc.core.options.copied import Lake, Merge, Table
from airflow_provider_cdc.core.options.declare import FAIL, check_names
from airflow_provider_cdc.core.options.flat import with_tables
from airflow_provider_cdc.core.shards.union import SOURCES
from airflow_provider_cdc.core.storage.uri import SOURCE_PLACEHOLDER
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.arguments.options import take_options
from airflow_provider_cdc.operators.arguments.types import GroupArguments
from airflow_provider_cdc.operators.merged.check import CheckMergedOperator
from airflow_provider_cdc.operators.merged.publish import PublishMergedOperator
from airflow_provider_cdc.task_groups.snapshot import RETRYING, SnapshotTaskGroup

_WHY_NOT = {
    "source_conn_id": "the sources are in source_conn_ids",
    "format": "tables of several sources are merged as Parquet only",
    "catalog_conn_id": "tables of several sources are merged as Parquet only",
    "table_name": "tables of several sources are merged as Parquet only",
    "partition_by": "tables of several sources are merged as Parquet only",
    "sort_by": "tables of several sources are merged as Parquet only",
    "on_type_change": "tables of several sources are merged as Parquet only",
    "on_foreign_commit": "tables of several sources are merged as Parquet only",
    "partition_key": "merged copies of several sources have no partitions",
    "changes": "the changes of shards are not united",
    "keep_days": "merged copies of several sources are kept by their number only: give Retention.copies",
}
"""Options that this group refuses, with the reasons."""
_GROUP_ARGUMENTS = ("group_id", "default_args", "doc_md", "group_display_name", "parent_group", "tooltip", "dag")


class MergedSnapshotTaskGroup(TaskGroup):
    """Copy the shards of several sources, and publish them as merged tables::

        MergedSnapshotTaskGroup(
            source_conn_ids=["cdc_eu", "cdc_us"],
            tables=[Merge("shop.orders", ["shop_*.orders"])],
            target="s3://lake/raw",
            refresh="auto",
        )

    For each source, the group has a `SnapshotTaskGroup`, which copies its shards into a lake of its own, in the folder
    ``_sources`` of the target. The sources are read at the same time, each exactly as of its own position. The task
    ``check_merged`` checks, before the reads begin, that their shards can be merged. After the last source, the task
    ``publish_merged`` compares the keys of all shards, and publishes each merged table at once.

    :param source_conn_ids: the connections to the sources, of one kind. Their positions are recorded in this order.
    :param tables: the merged tables, each a `Merge` with its shards. Every source must have shards of each merged
        table. ``vanished_shards`` names sources (``cdc_eu``) and shards (``cdc_eu:shop_3.orders``) of the last copy
        that may be missing now. A `Table` selects rows and columns of shards.
    :param target: the folder to publish in, or a `Lake`. It must not contain ``{source}``. ``retention`` is the number
        of merged copies to keep. Of the sources' own copies, one is kept.
    :param arguments: other arguments of `SnapshotTaskGroup`, for all sources.
    :raises ConfigurationError: an argument cannot be used with several sources.
    """

    def __init__(
        self,
        *,
        source_conn_ids: Sequence[str],
        tables: Sequence[Merge | Table | Mapping[str, object]] = (),
        target: Lake | str,
        **arguments: Unpack[GroupArguments],
    ) -> None:
        given = take_options(type(self).__name__, {"tables": tables, "target": target, **arguments})
        values, sources = with_tables(given.values), list(source_conn_ids)
        merge: Any = values.get("merge")
        vanished = list(values.get("vanished_shards") or ())
        _check(sources, given.values["tables"], merge, values["target"], vanished, values)
        check_names(given.others, _GROUP_ARGUMENTS, type(self).__name__, "argument")
        super().__init__(**{"group_id": "cdc_merged", **given.others, "prefix_group_id": True})
        self.default_args: dict[str, Any] = {**RETRYING, **(self.dag.default_args or {}), **self.default_args}
        lake, targets = values["target"], given.allow.targets
        storage_conn_id = values.get("storage_conn_id", "")
        self.sources: dict[str, SnapshotTaskGroup] = {}
        with self:
            for source in sources:
                own = {
                    "source_conn_id": source,
                    "tables": list(dict.fromkeys(pattern for shards in merge.values() for pattern in shards)),
                    "target": f"{lake.rstrip('/')}/{SOURCES}/{SOURCE_PLACEHOLDER}",
                    "merge": {name: list(shards) for name, shards in merge.items()},
                    "vanished_shards": [
                        name.partition(":")[2] for name in vanished if name.partition(":")[0] == source and ":" in name
                    ],
                    # The next run needs the last copy only, and readers read the merged copies.
                    "keep": 1,
                }
                self.sources[source] = SnapshotTaskGroup.of_options(
                    {**values, **own}, given.allow, group_id=_id_of(source), prefix_group_id=True
                )
            groups = list(self.sources.values())
            self.check = CheckMergedOperator(
                task_id="check_merged",
                source_conn_ids=sources,
                plans={source: group.preflight.output["plan"] for source, group in self.sources.items()},
                target=lake,
                vanished_shards=vanished,
                as_of=values.get("as_of", ""),
                on_table_error=values.get("on_table_error", FAIL),
                storage_conn_id=storage_conn_id,
                targets=targets,
            )
            self.publish = PublishMergedOperator(
                task_id="publish_merged",
                runs={source: group.run_uri for source, group in self.sources.items()},
                target=lake,
                vanished_shards=vanished,
                keep=values.get("keep", 0),
                spark_conn_id=values.get("spark_conn_id", "spark_default"),
                conf=values.get("spark_conf"),
                storage_conn_id=storage_conn_id,
                targets=targets,
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
    sources: Sequence[str], tables: Any, merge: Any, target: Any, vanished: Sequence[str], values: Mapping[str, Any]
) -> None:
    """Check the arguments of a group.

    :raises ConfigurationError: an argument is wrong.
    """
    for name, why in _WHY_NOT.items():
        if values.get(name) not in (None, False, "", "parquet"):
            raise ConfigurationError(f"MergedSnapshotTaskGroup does not have {options_by_name()[name].place}", hint=why)
    if not isinstance(tables, list) or not isinstance(merge, Mapping) or not merge:
        hint = 'tables=[Merge("shop.orders", ["shop_*.orders"])]'
        raise ConfigurationError("the merged tables must be known when the DAG is parsed", hint=hint)
    if plain := [table for table in tables if not isinstance(table, Mapping)]:
        hint = "the group copies the shards of merged tables, and no other tables: give objects Merge"
        raise ConfigurationError(f"MergedSnapshotTaskGroup cannot copy {plain[0]}", hint=hint)
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
            what = f"{name!r} in Merge.vanished_shards is neither a source that is gone nor a shard of a source"
            raise ConfigurationError(what, hint="write cdc_eu, or cdc_eu:shop_3.orders")


def _id_of(source: str) -> str:
    """Return the id of the group of a source."""
    return re.sub(r"[^\w-]", "_", source)
