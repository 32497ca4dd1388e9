"""The options for merged tables: many tables of the source, published as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.declare import COLUMNS, FLAG, FOLDED, PATTERNS, one_of, option

FAIL, ORIGIN_IN_KEY = "fail", "origin_in_key"
FIRST_SHARD, BY_NAME = "first_shard", "name"
_MERGES = replace(COLUMNS, what="an object with a list of tables for each merged table; or null")
_SHARDS = replace(PATTERNS, what="a list of tables; or null", plain=lambda value: list(value or ()))


@dataclass(frozen=True)
class MergeOptions:
    """The options for merged tables."""

    merge: Mapping[str, Sequence[str]] | None = option(
        None,
        accepts=_MERGES,
        title="Merged tables",
        section=FOLDED,
        help="Merged tables, each with its shards: the tables of the run whose rows it has, by name or pattern "
        '(`{"shop.orders": ["shop_*.orders_*"]}`). The shards are published together, as one table, and not on their '
        "own. `tables` must match the shards, too. All shards need the same key and the same columns.",
        example='an object such as {"shop.orders": ["shop_*.orders_*"]}',
    )
    origin_columns: bool = option(
        False,
        accepts=FLAG,
        title="Origin columns",
        section=FOLDED,
        help="Add the columns `_source`, `_schema` and `_table` to merged tables: the connection, the schema and the "
        "table from which a row was copied.",
        example="true or false",
    )
    on_collision: str = option(
        FAIL,
        accepts=one_of(
            (FAIL, ORIGIN_IN_KEY),
            (
                "fail: do not publish the merged table",
                "origin_in_key: the origin is part of the key",
            ),
        ),
        title="Keys in several shards",
        section=FOLDED,
        help="What happens if several shards of a merged table have a row with the same key at the run's position. "
        "`fail`: the merged table fails, and the error names keys and shards. `origin_in_key`: such rows are "
        "different rows, because the origin columns are part of the merged table's key. Requires `origin_columns`.",
        example="fail or origin_in_key",
    )
    vanished_shards: Sequence[str] | None = option(
        None,
        accepts=_SHARDS,
        title="Shards that may be missing",
        section=FOLDED,
        help="Tables that were shards of the last copy of a merged table, and that may be missing now. Without this "
        "confirmation, a missing shard stops the merged table, because its rows would disappear.",
        example='a list such as ["shop_3.orders"]',
    )
    column_order: str = option(
        FIRST_SHARD,
        accepts=one_of(
            (FIRST_SHARD, BY_NAME), ("first_shard: as in the first shard, by name", "name: the key, and then by name")
        ),
        title="Order of the columns of merged tables",
        section=FOLDED,
        help="The order of a merged table's columns: `first_shard`: that of its first shard. `name`: the key, and then "
        "by name.",
        example="first_shard or name",
    )
