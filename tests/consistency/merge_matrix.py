"""What each option does with merged tables. The page about merged tables shows this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
BOTH = ("mysql", "postgres")


@dataclass(frozen=True)
class Case:
    """An option, as the page names it, and its ``result``.

    ``options`` are those of a `Pipeline`, in which ``{schema}`` stands for the schema of the shards. ``refused`` is a
    part of the error of preflight; empty: the copies are right. ``seen`` returns what is published of a row of a shard;
    None: nothing.

    ``across`` is the result with several sources; empty: the same. ``argument`` is refused by the group for several
    sources, when the DAG is parsed.
    """

    option: str
    result: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = BOTH
    format: str = "parquet"
    refused: str = ""
    seen: Callable[[Row], Row | None] = lambda row: row
    across: str = ""
    argument: Mapping[str, Any] = field(default_factory=dict)

    def options_for(self, schema: str) -> dict[str, Any]:
        return {name: _placed(value, schema) for name, value in self.options.items()}


def _placed(value: Any, schema: str) -> Any:
    if isinstance(value, str):
        return value.replace("{schema}", schema)
    if isinstance(value, dict):
        return {_placed(name, schema): _placed(one, schema) for name, one in value.items()}
    return value


MATRIX = (
    Case("`Lake.format` = `parquet`", "works: one folder, whose record names the shard of each file"),
    Case(
        "`Lake.format` = `iceberg`",
        "works: one table, one snapshot per run, in the run's cut",
        format="iceberg",
        across="refused: the sources' files lack the field ids that Iceberg needs, and a cut has one position",
        argument={"format": "iceberg"},
    ),
    Case("`Read.consistency` = `lock`", "works, for each shard", {"consistency": "lock"}, ("mysql",)),
    Case("`Read.consistency` = `watermark`", "works, for each shard", {"consistency": "watermark"}),
    Case("`Read.consistency` = `exported`", "works, for each shard", {"consistency": "exported"}, ("postgres",)),
    Case("`Read.consistency` = `again`", "works, for each shard", {"consistency": "again"}, ("postgres",)),
    Case(
        "`Table.where`",
        "works, if all shards have the same condition",
        {"where": {"{schema}.orders_*": "k < 30"}},
        seen=lambda row: row if row[0] < 30 else None,
    ),
    Case(
        "`Table.where`, with different conditions",
        "refused",
        {"where": {"{schema}.orders_1": "k < 30"}},
        refused="different parts of its shards would be copied",
    ),
    Case(
        "`Table.columns`",
        "works, if all shards have the same columns",
        {"columns": {"{schema}.orders_*": ["tag"]}},
        seen=lambda row: (row[0], row[1], row[3]),
    ),
    Case(
        "`Merge.column_order` = `name`",
        "works: the key, and then all columns by name",
        {"merging": {"column_order": "name"}},
        across="works, also if the sources have their columns in different orders",
    ),
    Case("`On.unrepresentable`", "works, for each shard", {"unrepresentable": "string"}),
    Case("`Lake.arrays` = `list`", "works, for each shard", {"arrays": "list"}, ("postgres",)),
    Case(
        "`Retention.copies`",
        "works: a merged copy is removed as a whole",
        {"keep": 1},
        across="works: the number of merged copies; of the sources' own copies, one stays",
    ),
    Case(
        "`Refresh.changes`",
        "refused: the changes of shards are not united",
        {"changes": True, "refresh": "auto"},
        refused="changes are not published for merged tables",
        argument={"changes": True},
    ),
)
"""The options with a run of their own in `test_shards.test_each_option`, and, unless ``argument`` is set, with a union
of their own in `test_fleet_options.test_each_option_across_sources`."""

ELSEWHERE = (
    Case("`refresh` = `auto`, `changes`", "work: each shard is rolled forward from its files in the last copy"),
    Case(
        "`as_of`",
        "works: all shards at one position",
        across="a time works, for all sources; a position is refused",
    ),
    Case(
        "`Table.partition_by`, `Table.sort_by`",
        "work, by the name of the merged table",
        across="refused: they need Iceberg",
        argument={"partition_by": {"shop.orders": ["id"]}},
    ),
    Case(
        "`Retention.days`",
        "works",
        across="refused: give `Retention.copies`",
        argument={"keep_days": 7},
    ),
    Case(
        "`Lake.partition_key`",
        "refused: merged copies have no partitions",
        argument={"partition_key": "{{ ds }}"},
    ),
    Case(
        "`On.table_error` = `skip`",
        "works: a shard that cannot be copied leaves out its merged table, with all shards",
    ),
    Case(
        "`On.schema_change`",
        "works: an altered shard is read again, in a roll-forward in full; its merged table fails if it no longer fits",
    ),
    Case("`VerifyOperator`: `files`, `copies`", "work"),
    Case("`VerifyOperator`: `source`", "not verified, with the reason"),
    Case("tables without a key", "refused: rows of different shards could not be told apart"),
    Case(
        "all other options",
        "work as for other tables",
        across="work, for each source",
    ),
)
"""Further options, which other tests cover. Those with an ``argument`` are cases of
`test_merged.test_what_several_sources_cannot_have_is_refused`."""

ACROSS = tuple(case for case in MATRIX if not case.argument)
REFUSED_ACROSS = tuple(case for case in (*MATRIX, *ELSEWHERE) if case.argument)
