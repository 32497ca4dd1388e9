"""Finds partitioned tables that have no room for another partition.

If a partition was attached with its rows, and then detached or dropped, neither the catalog nor the log shows that. But
the server does not allow partitions of a table to overlap. So if the partitions that existed the whole time cover all
values, the table had no other partition during that time.

Hash partitions cover all values if all remainders are present. Ranges cover all values if they extend without gaps from
MINVALUE to MAXVALUE. Rows with a NULL in the partition key belong to the default partition, and a table has at most one
default partition. Lists never cover all values.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import HAS_NO_NULL, TREE
from airflow_provider_cdc.sources.postgres.server.session import query

NO_ROOM = "HASH partitions with all remainders, or ranges from MINVALUE to MAXVALUE that leave no gap"
"""A description, used in hints, of the partitions of a table that has no room for another partition
(`without_room`)."""

# For each partitioned table in the partition trees: its partitioning strategy, whether its partition key may be NULL,
# and the bounds of its partitions.
_BOUNDS = f"""WITH {TREE}
SELECT t.root, t.relation, p.partstrat::text, 0 = ANY(p.partattrs::int2[]) OR EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = p.partrelid AND a.attnum = ANY(p.partattrs::int2[])
        AND NOT {HAS_NO_NULL}),
    ARRAY(SELECT COALESCE(pg_get_expr(c.relpartbound, c.oid), '') FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = t.relation AND NOT i.inhdetachpending)
FROM tree t JOIN pg_partitioned_table p ON p.partrelid = t.relation
"""
_DEFAULT = "DEFAULT"
_HASH = re.compile(r"FOR VALUES WITH \(modulus (\d+), remainder (\d+)\)", re.IGNORECASE)
_RANGE = re.compile(
    r"FOR VALUES FROM \((?P<low>(?:'(?:[^']|'')*'|[^'()])*)\) TO \((?P<high>(?:'(?:[^']|'')*'|[^'()])*)\)"
)


def without_room(catalog: Catalog, tables: Sequence[Table]) -> set[str]:
    """Return the names of the partitioned tables to which no further partition with rows can be attached."""
    roots = {table.details["oid"]: str(table.name) for table in tables if table.details["kind"] == "p"}
    closed: dict[int, list[bool]] = defaultdict(list)
    for root, _, kind, has_nulls, bounds in query(catalog, _BOUNDS, (list(roots),)):
        closed[root].append(_is_closed(kind, has_nulls, bounds))
    return {roots[root] for root, every in closed.items() if all(every)}


def _is_closed(kind: str, may_be_null: bool, bounds: Sequence[str]) -> bool:
    if kind == "h":
        found = [_HASH.fullmatch(bound) for bound in bounds]
        return sum((Fraction(1, int(one[1])) for one in found if one is not None), Fraction(0)) == 1
    if kind != "r" or (may_be_null and _DEFAULT not in bounds):
        return False
    ranges = [_RANGE.fullmatch(bound) for bound in bounds if bound != _DEFAULT]
    nexts = {one["low"]: one["high"] for one in ranges if one is not None}
    least = [low for low in nexts if set(low.split(", ")) == {"MINVALUE"}]
    at = least[0] if least else ""
    while at in nexts:
        at = nexts.pop(at)
    return bool(at) and set(at.split(", ")) == {"MAXVALUE"}
