"""Generates the tables of types. The remarks about types of the sources are written here; all other types and remarks
come from the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pyarrow as pa

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.parquet.lake_types import CONVERSIONS, file_type
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.sinks.iceberg.layout import iceberg_type
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType
from airflow_provider_cdc.sources.postgres.catalog import types as postgres

_HEAD = "Arrow / Parquet", "Iceberg", "remarks"
_POLICY = "by `On.unrepresentable`"

MYSQL: Sequence[tuple[str, Sequence[str], str]] = (
    (
        "`tinyint`, `smallint`, `mediumint`, `int`, `bigint`",
        ("tinyint", "smallint", "mediumint", "int", "bigint"),
        "",
    ),
    (
        "… `unsigned`",
        tuple(f"{kind} unsigned" for kind in ("tinyint", "smallint", "mediumint", "int", "bigint")),
        "Spark reads uint64 as decimal(20,0)",
    ),
    ("`float`, `double`", ("float", "double"), "the stored bits"),
    ("`decimal(p,s)`, p ≤ 38", ("decimal(10,2)",), "p and s as declared"),
    (
        "`decimal(p,s)`, p > 38",
        (),
        (f"{_POLICY}. `error`: rejected by `preflight`. `string`: string. `null`: decimal128(38, s), and values with "
         "more digits are null"),
    ),
    ("`bit(1)`, `bit(n)`", ("bit(1)", "bit(2)"), ""),
    (
        "`char`, `varchar`, `text`",
        ("char(9)", "varchar(9)", "tinytext", "text", "mediumtext", "longtext"),
        f"decoded from the column's character set; bytes that are not valid in it: {_POLICY}",
    ),
    (
        "`binary`, `varbinary`, `blob`",
        ("binary(9)", "varbinary(9)", "tinyblob", "blob", "mediumblob", "longblob"),
        "`binary(n)` has all n bytes",
    ),
    ("`date`", ("date",), f"zero dates and invalid dates (`2024-00-15`): {_POLICY}"),
    ("`datetime(n)`", ("datetime", "datetime(6)"), "same as `date`; Spark: timestamp_ntz. The year 0 is valid"),
    ("`timestamp(n)`", ("timestamp", "timestamp(6)"), "same as `date`"),
    ("`time(n)`", ("time", "time(6)"), "−838:59:59 to 838:59:59; Parquet and Spark: int64 microseconds"),
    ("`year`", ("year",), ""),
    ("`enum`", ("enum('a','b')",), "readers see text; `''` for a value that was not a member when it was stored"),
    ("`set`", ("set('a','b')",), "the members, joined by commas"),
    ("`json`", ("json",), "exactly the text that SELECT prints"),
    (
        "`geometry`, `point`, …",
        ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
         "geomcollection"),
        "as in the result of SELECT: the SRID in 4 bytes, little-endian, then WKB",
    ),
    ("`vector(n)`", ("vector(3)",), "the stored bits; as many numbers as the value has; Spark: array&lt;float&gt;"),
)  # fmt: skip
"""Names of types, declarations with these types, and a remark."""

_NUMERIC_10_2 = ((10 << 16) | 2) + 4

POSTGRES: Sequence[tuple[str, Sequence[tuple[int, int]], str]] = (
    ("`smallint`, `integer`, `bigint`", ((21, -1), (23, -1), (20, -1)), ""),
    ("`real`, `double precision`", ((700, -1), (701, -1)), "the stored bits; every NaN becomes the same NaN"),
    ("`boolean`", ((16, -1),), ""),
    (
        "`numeric(p,s)`, p ≤ 38, 0 ≤ s ≤ p",
        ((1700, _NUMERIC_10_2),),
        f"p and s as declared; NaN and ±Infinity: {_POLICY}",
    ),
    (
        "`text`, `varchar`, `char(n)`, `name`",
        ((25, -1), (1043, -1), (1042, -1), (19, -1)),
        "`char(n)` includes its padding",
    ),
    ("`json`, `jsonb`", ((114, -1), (3802, -1)), "the text that SELECT prints"),
    ("`uuid`", ((2950, -1),), ""),
    ("`bytea`", ((17, -1),), ""),
    ("`date`", ((1082, -1),), f"±infinity: {_POLICY}"),
    (
        "`timestamp`, `timestamptz`",
        ((1114, -1), (1184, -1)),
        f"±infinity and times after 294247-01-10: {_POLICY}",
    ),
    ("`time`", ((1083, -1),), f"24:00:00: {_POLICY}. Spark reads it only with `spark.sql.timeType.enabled`"),
    (
        "arrays of these types, with `Lake.arrays` = `list`",
        ((1007, -1), (1009, -1)),
        (
            f"arrays of several dimensions, arrays with another lower bound than 1, and elements as above: {_POLICY}. "
            "In the key, and in tables without a key: text"
        ),
    ),
    ("a domain", (), "as its base type"),
    (
        (
            "all others: other `numeric`, `interval`, `timetz`, `money`, enums, arrays, composites, ranges, `inet`, "
            "`bit`, geometric types, `tsvector`, `xml`, extensions' types, …"
        ),
        ((1700, -1), (1186, -1), (1266, -1), (790, -1), (869, -1), (1560, -1), (600, -1), (142, -1)),
        (
            "the text that the type's output function prints (`IntervalStyle` iso_8601; `money`: in the database's "
            "own `lc_monetary`)"
        ),
    ),
)
"""Names of types, OIDs and modifiers of these types, and a remark."""


def mysql_types() -> Iterator[Sequence[str]]:
    yield "MySQL", *_HEAD
    for name, declarations, remark in MYSQL:
        types = _mysql(declarations)
        yield name, _shown(types), _in_iceberg(types), remark


def postgres_types() -> Iterator[Sequence[str]]:
    yield "PostgreSQL", *_HEAD
    for name, kinds, remark in POSTGRES:
        types = _postgres(kinds)
        yield name, _shown(types), _in_iceberg(types), remark


def iceberg_types() -> Iterator[Sequence[str]]:
    yield "Iceberg", "Arrow / Parquet", "in the data file", "remarks"
    every = [kind for _, names, _ in MYSQL for kind in _mysql(names)]
    every += [kind for _, kinds, _ in POSTGRES for kind in _postgres(kinds)]
    remarks = {kind: one.why for one in CONVERSIONS for kind in one.published}
    groups: dict[tuple[str, str, str], list[pa.DataType]] = {}
    for kind in dict.fromkeys(every):
        group = _in_iceberg([kind]), _shown([file_type(kind)]), remarks.get(kind, "")
        groups.setdefault(group, []).append(kind)
    for (iceberg, in_file, remark), kinds in sorted(groups.items(), key=lambda group: group[0][0]):
        yield iceberg, _shown(kinds), in_file, remark


def _mysql(declarations: Sequence[str]) -> list[pa.DataType]:
    columns = [Column("c", text, True, {"charset": "utf8mb4"}) for text in declarations]
    return [ColumnType.of(column).arrow for column in columns]


def _postgres(kinds: Sequence[tuple[int, int]]) -> list[pa.DataType]:
    columns = [Column("c", "", True, {"oid": oid, "typmod": typmod, "kind": "base"}) for oid, typmod in kinds]
    table = Table(TableName("s", "t"), (*columns,), ("k",), options=TableOptions(arrays="list"))
    types: list[pa.DataType] = postgres.arrow_schema(table).types
    return types


def _in_iceberg(types: Sequence[pa.DataType]) -> str:
    """Return the names of the types of Iceberg columns, each once."""
    names = [str(iceberg_type(kind, count(1))).replace("<", "&lt;").replace(">", "&gt;") for kind in types]
    return ", ".join(dict.fromkeys(names))


def _shown(types: Sequence[pa.DataType]) -> str:
    """Return the names of the Arrow types, each once."""
    names = [
        f"dictionary of {one.value_type}" if pa.types.is_dictionary(one)
        else f"list&lt;{one.value_type}&gt;" if pa.types.is_list(one)
        else f"decimal128({one.precision},{one.scale})" if pa.types.is_decimal(one)
        else str(one)
        for one in types
    ]  # fmt: skip
    return ", ".join(dict.fromkeys(names))
