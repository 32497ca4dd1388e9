"""Chunks together have each row exactly once, whatever the type and the values of the key.

Tables are planned when they have random values, and read when they also have the extreme values of the type, in chunks
of very few rows, by the same reader as in runs. The oracle is a SELECT of the whole table, without a condition.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.jobs.snapshot.parts import KeyExtents, check_key_order
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.chunking import chunks
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.server.session import query, session, table_sql
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from tests.seeds import SOAK_SEED

Dice = random.Random


@dataclass(frozen=True)
class Kind:
    """A key column's declaration, the extremes of its values and a way to make others, as SQL. ``cut`` is whether
    chunks can be cut along it."""

    declared: str
    extremes: Sequence[str]
    some: Callable[[Dice], str]
    cut: bool = True


def integer(name: str, low: int, high: int) -> Kind:
    values = [low, low + 1, 0, 1, high - 1, high]
    return Kind(name, [str(value) for value in values], lambda dice: str(dice.randint(low, high)))


def decimal(arguments: str, digits: int, scale: int, rest: str = "") -> Kind:
    most = "9" * (digits - scale) + ("." + "9" * scale if scale else "")
    least = "0" if rest else f"-{most}"
    small = "0." + "0" * (scale - 1) + "1" if scale else "1"

    def some(dice: Dice) -> str:
        sign = dice.choice(["", "" if rest else "-"])
        whole = str(dice.randrange(10 ** dice.randint(0, digits - scale)))
        return f"{sign}{whole}" + (f".{dice.randrange(10**scale):0{scale}}" if scale else "")

    return Kind(f"DECIMAL{arguments}{rest}", [least, "0", small, most], some)


def fraction(dice: Dice, digits: int) -> str:
    return f".{dice.randrange(10**digits):0{digits}}" if digits else ""


def clock(dice: Dice) -> str:
    # Times of day that read as dates, too: 08:12:27 is 2008-12-27.
    return f"{dice.randrange(24):02}:{dice.randrange(1, 13):02}:{dice.randrange(1, 29):02}"


def time_of(digits: int) -> Kind:
    ends = ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'08:12:27'", "'100:00:00'"]
    if digits:
        ends += [f"'-838:59:58.{'9' * digits}'", f"'-00:00:00.{'0' * (digits - 1)}1'"]
    return Kind(
        f"TIME({digits})",
        ends,
        lambda dice: f"'{dice.choice(['', '-'])}{dice.choice(['', '1', '7'])}{clock(dice)}{fraction(dice, digits)}'",
    )


def datetime_of(digits: int) -> Kind:
    ends = [
        "'0000-00-00'", "'0000-01-01'", "'0001-01-01'", "'2024-02-31 10:00:00'", "'2024-00-00'", "'0000-05-00'",
        "'9999-12-31 23:59:59'", "'1000-01-01'", "'2024-02-29 08:12:27'",
    ]  # fmt: skip
    return Kind(
        f"DATETIME({digits})",
        ends,
        lambda dice: (
            f"'{dice.randrange(10000):04}-{dice.randrange(1, 13):02}-{dice.randrange(1, 32):02} "
            f"{clock(dice)}{fraction(dice, digits)}'"
        ),
    )


def timestamp_of(digits: int) -> Kind:
    ends = ["'0000-00-00'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'1970-01-01 00:00:02'"]
    return Kind(
        f"TIMESTAMP({digits})",
        ends,
        lambda dice: (
            f"'{dice.randrange(1971, 2038)}-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02} "
            f"{clock(dice)}{fraction(dice, digits)}'"
        ),
    )


LETTERS = "aAáÁbBßsSzZ \t~-_%\\?019æøœÄÖ"


def text(kind: str, collation: str) -> Kind:
    charset = collation.split("_")[0]
    # The server converts a backslash to the second of two codes of sjis, which stops a run in a key.
    letters = LETTERS.replace("\\", "") if charset == "sjis" else LETTERS

    def literal(value: str) -> str:
        return f"CONVERT(CONVERT(x'{value.encode().hex()}' USING utf8mb4) USING {charset})"

    ends = [literal(value) for value in ("", "\0", "\t", "~", "zzzzzzzzz", "ZZZZZZZZZ", "9" * 9, "a b", "aa")]
    return Kind(
        f"{kind}(9) CHARACTER SET {charset} COLLATE {collation}",
        ends,
        lambda dice: literal("".join(dice.choices(letters, k=dice.randrange(1, 8)))),
    )


def binary(declared: str, size: int) -> Kind:
    return Kind(
        declared,
        ["x''", "x'00'", f"x'{'ff' * size}'", f"x'{'00' * size}'", "x'2020'"],
        lambda dice: f"x'{dice.randbytes(dice.randint(1, size)).hex()}'",
    )


def bits(size: int) -> Kind:
    values = {0, 1, 2**size - 1, 2 ** (size - 1)}
    return Kind(f"BIT({size})", [str(value) for value in values], lambda dice: str(dice.randrange(2**size)))


YEAR = Kind("YEAR", ["0", "1901", "1902", "2155", "2154"], lambda dice: str(dice.choice([0, dice.randint(1901, 2155)])))
DATE = Kind(
    "DATE", datetime_of(0).extremes,
    lambda dice: f"'{dice.randrange(10000):04}-{dice.randrange(13):02}-{dice.randrange(32):02}'",
)  # fmt: skip
SIZES = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}

KINDS = {
    kind.declared: kind
    for kind in [
        *(integer(name, -(2 ** (size - 1)), 2 ** (size - 1) - 1) for name, size in SIZES.items()),
        *(integer(f"{name} UNSIGNED", 0, 2**size - 1) for name, size in SIZES.items()),
        integer("INT(9) ZEROFILL", 0, 2**32 - 1),
        decimal("", 10, 0),
        decimal("(5,2)", 5, 2, " UNSIGNED"),
        decimal("(12,4)", 12, 4, " ZEROFILL"),
        decimal("(30,30)", 30, 30),
        decimal("(38,10)", 38, 10),
        decimal("(65,30)", 65, 30),
        decimal("(65,0)", 65, 0),
        DATE,
        *(datetime_of(digits) for digits in (0, 1, 3, 6)),
        *(timestamp_of(digits) for digits in (0, 2, 6)),
        *(time_of(digits) for digits in (0, 1, 3, 6)),
        YEAR,
        *(bits(size) for size in (1, 7, 8, 33, 64)),
        binary("BINARY(7)", 7),
        binary("VARBINARY(20)", 20),
        *(
            text(kind, collation)
            for kind in ("CHAR", "VARCHAR")
            for collation in (
                "utf8mb4_0900_ai_ci", "utf8mb4_0900_bin", "utf8mb4_bin", "utf8mb3_general_ci", "latin1_swedish_ci",
                "latin1_german2_ci", "cp1250_czech_cs", "utf16_unicode_ci", "gbk_chinese_ci", "sjis_japanese_ci",
                "ascii_bin",
            )
        ),
        Kind("FLOAT", ["-3.4e38", "0", "1.5", "3.4e38"], lambda dice: str(dice.random()), cut=False),
        Kind("DOUBLE", ["-1.7e308", "0", "1.7e308"], lambda dice: str(dice.random()), cut=False),
        Kind("ENUM('z','a','m','','0')", ["1", "5"], lambda dice: str(dice.randint(1, 5)), cut=False),
        Kind("SET('z','a','m')", ["0", "7"], lambda dice: str(dice.randint(0, 7)), cut=False),
    ]
}  # fmt: skip

# name: key columns by letter, the key's definition
KEYS = {
    "time and int": (["TIME(0)", "INT"], "PRIMARY KEY (a, b)"),
    "year and time, descending": (["YEAR", "TIME(3)"], "PRIMARY KEY (a DESC, b DESC)"),
    "mixed directions": (["YEAR", "INT"], "PRIMARY KEY (a DESC, b)"),
    "few values, then year": (["TINYINT", "YEAR", "TIME(6)"], "PRIMARY KEY (a, b, c)"),
    "text, moment, number": (
        ["VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci", "DATETIME(3)", "DECIMAL(65,30)"],
        "PRIMARY KEY (a, b, c)",
    ),
    "enum, then time": (["ENUM('z','a','m','','0')", "TIME(0)"], "PRIMARY KEY (a, b)"),
    "time, then enum": (["TIME(0)", "ENUM('z','a','m','','0')"], "PRIMARY KEY (a, b)"),
    "unique index": (["DATE", "BIT(7)"], "UNIQUE (a, b)"),
    "prefix": (["VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"], "PRIMARY KEY (a(3))"),
    "generated": (
        ["INT"],
        "g TIME GENERATED ALWAYS AS (SEC_TO_TIME(a % 3000000)) STORED NOT NULL, PRIMARY KEY (g, a)",
    ),
    "invisible primary key": (["TIME(0)"], ""),
}


@pytest.fixture(scope="module")
def source(mysql: MysqlServer) -> MysqlSource:
    return MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))


def holds_each_row_once(
    source: MysqlSource,
    server: MysqlServer,
    schema: str,
    kinds: Sequence[Kind],
    key: str,
    rows: int,
    sizes: Sequence[int],
) -> None:
    seed = SOAK_SEED or 0
    print(f"seed {seed}")
    dice = random.Random(seed)
    columns = [f"{name} {kind.declared} NOT NULL" for name, kind in zip("abc", kinds, strict=False)]

    def fill(values: Sequence[Sequence[str]]) -> None:
        names = ", ".join("abc"[: len(kinds)])
        with server.connect(database=schema, sql_mode="ALLOW_INVALID_DATES") as connection:
            rows = ", ".join(f"({', '.join(row)}, REPEAT('x', 200))" for row in values)
            query(connection, f"INSERT IGNORE INTO t ({names}, filler) VALUES {rows}")

    with server.connect(database=schema) as connection:
        query(connection, "SET sql_generate_invisible_primary_key = ON")
        query(connection, f"CREATE TABLE t ({', '.join([*columns, 'filler VARCHAR(200)', key]).rstrip(', ')})")
    fill([[kind.some(dice) for kind in kinds] for _ in range(rows)])
    extremes = [
        [dice.choice([value, kind.some(dice)]) if other else value for other, (kind, value) in enumerate(row)]
        for row in ([(kind, dice.choice(kind.extremes)) for kind in kinds] for _ in range(20))
    ] + [[value] + [kind.some(dice) for kind in kinds[1:]] for value in kinds[0].extremes]
    later = dice.random() < 0.5
    if not later:
        fill(extremes)
    with session(source.settings) as connection:
        query(connection, f"ANALYZE NO_WRITE_TO_BINLOG TABLE {schema}.t")
        table = replace(
            read_tables(connection, [TableName(schema, "t")])[0], options=TableOptions(unrepresentable="string")
        )
    plans = [source.plan_chunks(table, size) for size in sizes]
    if later:
        fill(extremes)
    with source.reader(table, "watermark", LockPolicy()) as reader:

        def read(plan: Sequence[Chunk]) -> Counter[str]:
            rows: Counter[str] = Counter()
            extents = KeyExtents(source.key_order(table))
            for chunk in plan:
                for batch in reader.read(chunk):
                    extents.add(chunk.number, batch)
                    rows.update(map(str, batch.to_pylist()))
            check_key_order(table, extents.found)
            return rows

        whole = read([Chunk(0)])
        assert whole.total() == server.query(f"SELECT COUNT(*) FROM {schema}.t")[0][0]
        for plan in plans:
            assert read(plan) == whole, f"{len(plan)} chunks, extremes later: {later}"
    most = max(map(len, plans))
    if not kinds[0].cut or key.endswith("(a(3))"):
        assert most == 1
    else:
        distinct = whole.total() if len(kinds) > 1 else server.query(f"SELECT COUNT(DISTINCT a) FROM {schema}.t")[0][0]
        assert most > min(distinct, rows) / 20, "hardly cut at all"
        if most > 2:
            reads_ranges(source, server, schema, max(plans, key=len)[1:-1])


def reads_ranges(source: MysqlSource, server: MysqlServer, schema: str, plan: Sequence[Chunk]) -> None:
    """As the server prepares it, the statement that reads a chunk finds its rows by the index."""
    with session(source.settings) as connection:
        (table,) = read_tables(connection, [TableName(schema, "t")])
        for chunk in plan[:: max(1, len(plan) // 5)]:
            condition, params = chunks.where(table, chunk)
            sql = f"SELECT * FROM {table_sql(table.name)} FORCE INDEX ({table.key_index}) WHERE {condition}"
            explained = PreparedStatement(connection, f"EXPLAIN FORMAT=TREE {sql}").value(params).decode()
            assert "Table scan" not in explained, explained


# Planning and decoding treat CHAR and VARCHAR alike.
@pytest.mark.parametrize(
    "declared", [pytest.param(name, marks=pytest.mark.long) if name.startswith("CHAR") else name for name in KINDS]
)
def test_each_row_once_whatever_the_keys_type(
    declared: str, source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    holds_each_row_once(source, mysql, schema, [KINDS[declared]], "PRIMARY KEY (a)", 60, [1, 7])


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_each_row_once_whatever_the_key(name: str, source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    declared, key = KEYS[name]
    holds_each_row_once(source, mysql, schema, [KINDS[one] for one in declared], key, 200, [1, 10])


@pytest.mark.long
@pytest.mark.parametrize("declared", [*KINDS, *KEYS])
def test_each_row_once_whatever_the_key_with_many_rows(
    declared: str, source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    columns, key = KEYS.get(declared, ([declared], "PRIMARY KEY (a)"))
    holds_each_row_once(source, mysql, schema, [KINDS[one] for one in columns], key, 1000, [1, 13, 100])
