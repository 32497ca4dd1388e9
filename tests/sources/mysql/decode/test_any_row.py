"""Rows of any types are the same by SELECT and in every image of the log, and two other readers agree."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.options.run import TableOptions
from harness.mysql_server import MysqlServer
from tests.seeds import examples
from tests.servers import throw_away_mysql
from tests.sources.mysql.decode import other_reader
from tests.sources.mysql.decode.policies import decode, holds, select
from tests.sources.mysql.decode.reading import same, split
from tests.sources.mysql.decode.row_images import describe, logged, logged_by
from tests.sources.mysql.values import from_driver, independent, same_bits

_MICRO = datetime.timedelta(microseconds=1)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
_CODECS = {
    "utf8mb3": "utf-8",
    "ascii": "ascii",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "koi8r": "koi8-r",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "tis620": "tis-620",
    "macce": "mac-latin2",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "euckr": "cp949",
    "big5": "big5",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "ucs2": "utf-16",
    "utf16": "utf-16",
    "utf16le": "utf-16",
    "utf32": "utf-32",
}
# Characters that are converted to others on the way back.
_ONE_WAY = {
    "shift_jis": "\xa5\u203e",
    "cp932": "\xa2\xa3\xac\u2016\u2212\u301c",
    "euc_jp": "\xa2\xa3\xa5\xa6\xac\u2016\u203e\u2212\u301c\uff3c",
}
# For character sets that Python has no codec for.
_ALPHABETS = {
    "dec8": "a~é¤œÿ",
    "swe7": "a_ÉÄÖÅÜéäöåü",
    "armscii8": "a~)ԱֆՖ՞’",
    "geostd8": "a~€აჵ№",
    "keybcs2": "a~Čů¼█ß",
}


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**precision - 1
    context = decimal.Context(prec=80)
    return st.integers(-most, most).map(lambda number: decimal.Decimal(number).scaleb(-scale, context))


def _times(most: int) -> st.SearchStrategy[datetime.timedelta]:
    # A second less than the largest time: the server would round it up.
    return st.integers(-most, most).map(lambda micros: micros * _MICRO)


def _points(latitudes: bool) -> st.SearchStrategy[bytes]:
    """Points as they are stored: the number of the reference system, and WKB."""
    system = st.sampled_from([4326] if latitudes else [0, 3857])
    degrees = st.floats(-89, 89)
    return st.builds(lambda number, x, y: struct.pack("<IBIdd", number, 1, 1, x, y), system, degrees, degrees)


def _lines(system: int) -> st.SearchStrategy[bytes]:
    places = st.lists(st.tuples(st.floats(-89, 89), st.floats(-89, 89)), min_size=2, max_size=6)
    return places.map(
        lambda points: (
            struct.pack("<IBII", system, 1, 2, len(points)) + b"".join(struct.pack("<dd", x, y) for x, y in points)
        )
    )


def _vectors(most: int) -> st.SearchStrategy[bytes]:
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    return st.lists(floats, min_size=1, max_size=most).map(lambda many: struct.pack(f"<{len(many)}f", *many))


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
).map(lambda value: json.dumps(value, ensure_ascii=False))

_NO_DATES = st.builds(
    "{:04}-{:02}-{:02}".format, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)
) | st.just("0000-00-00")
_CLOCKS = st.datetimes().map(lambda moment: moment.strftime(" %H:%M:%S.%f"))
_STAMPS = st.datetimes(datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(2038, 1, 19))

ANY: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "tinyint unsigned": st.integers(0, 255),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "smallint unsigned": st.integers(0, 2**16 - 1),
    "mediumint": st.integers(-(2**23), 2**23 - 1),
    "mediumint unsigned": st.integers(0, 2**24 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "int unsigned": st.integers(0, 2**32 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "bigint unsigned": st.integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal(5,2)": _decimals(5, 2),
    "decimal(18,9)": _decimals(18, 9),
    "decimal(19,0)": _decimals(19, 0),
    "decimal(30,30)": _decimals(30, 30),
    "decimal(38,10)": _decimals(38, 10),
    "char(40)": _TEXTS.map(lambda text: text.rstrip(" ")),
    "varchar(40)": _TEXTS,
    "varchar(300)": _TEXTS,
    "text": _TEXTS.map(lambda text: text * 9),
    "longtext": _TEXTS.map(lambda text: text * 99),
    **{
        f"varchar(40) character set {name}": st.text(
            st.characters(codec=codec, exclude_characters=_ONE_WAY.get(codec, "")), max_size=40
        )
        for name, codec in _CODECS.items()
    },
    **{f"varchar(40) character set {name}": st.text(letters, max_size=40) for name, letters in _ALPHABETS.items()},
    "binary(8)": st.binary(min_size=8, max_size=8),
    "binary(255)": st.binary(max_size=255),
    "varbinary(300)": st.binary(max_size=300),
    "tinyblob": st.binary(max_size=255),
    "longblob": st.binary(max_size=70),
    "date": st.dates(),
    "datetime(6)": st.datetimes(),
    "datetime(3)": st.datetimes().map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
    "datetime": st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
    "timestamp(6) null": _STAMPS,
    "timestamp(1) null": _STAMPS.map(lambda moment: moment.replace(microsecond=moment.microsecond // 10**5 * 10**5)),
    "time(6)": _times((838 * 3600 + 3598) * 10**6),
    "time": _times((838 * 3600 + 3598) * 10**6),
    "year": st.one_of(st.just(0), st.integers(1901, 2155)),
    "bit(1)": st.integers(0, 1),
    "bit(13)": st.integers(0, 2**13 - 1),
    "bit(64)": st.integers(0, 2**64 - 1),
    "enum('a','b','c')": st.sampled_from("abc"),
    "set('a','b','c')": st.sampled_from(["", "a", "b", "a,c", "a,b,c"]),
    "json": _JSON,
    "geometry": _points(False) | _lines(0) | _lines(4326),
    "point srid 4326": _points(True),
    "linestring": _lines(4326),
    "vector(5)": _vectors(5),
    "vector(300)": _vectors(300),
}  # fmt: skip
"""Values of each declaration, as parameters of the driver."""

UNREPRESENTABLE: dict[str, st.SearchStrategy[Any]] = {
    "date": _NO_DATES,
    "datetime(6)": st.builds(str.__add__, _NO_DATES, _CLOCKS),
    "datetime(1)": st.builds(lambda day, clock: day + clock[:-5], _NO_DATES, _CLOCKS),
    "datetime": st.builds(lambda day, clock: day + clock[:-7], _NO_DATES, _CLOCKS),
    "timestamp(4) null": st.just("0000-00-00 00:00:00") | _STAMPS,
    "decimal(65,30)": _decimals(65, 30) | _decimals(40, 30),
    "decimal(39,0)": _decimals(39, 0),
    "decimal(57,9)": _decimals(57, 9) | _decimals(38, 9),
    "decimal(40,5) unsigned zerofill": _decimals(40, 5).map(abs),
}
"""Values that no Arrow type may hold."""


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[str], list[tuple[Any, ...]]]:
    """A policy, declarations of columns, and rows of values."""
    policy = draw(st.sampled_from(["error", "error", "null", "string"]))
    kinds = ANY if policy == "error" else {**ANY, **UNREPRESENTABLE}
    declarations = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=12))
    values = st.tuples(*(st.none() | kinds[declaration] for declaration in declarations))
    return policy, declarations, draw(st.lists(values, min_size=1, max_size=6))


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    """A server whose log names columns and members, for the other reader."""
    with throw_away_mysql({"binlog_row_metadata": "FULL"}) as started:
        started.query("CREATE DATABASE any_row")
        yield started


def parameter(value: Any) -> Any:
    # The driver writes a double with too few digits; text keeps it.
    return repr(value) if isinstance(value, float) else value


def is_bytes(declaration: str) -> bool:
    kinds = ("vector", "geometry", "point", "linestring", "binary", "varbinary", "tinyblob", "longblob")
    return declaration.startswith(kinds)


def judged(server: MysqlServer, policy: str, declarations: list[str], ours: pa.Table) -> list[list[str | None]]:
    """Compare what was selected with the driver's own reading; returns each value as the server prints it."""
    names = [f"c{number}" for number in range(len(declarations))]
    plain = ", ".join(independent(kind, name) for kind, name in zip(declarations, names, strict=True))
    printed = ", ".join(
        f"HEX({name})" if is_bytes(kind) else f"CONCAT({name})" for kind, name in zip(declarations, names, strict=True)
    )
    driver = server.query(f"SELECT {plain} FROM any_row.t ORDER BY id")
    texts = server.query(f"SELECT {printed} FROM any_row.t ORDER BY id")
    for index, declaration in enumerate(declarations):
        column = ours[names[index]]
        for value, given_value, text in zip(
            column.to_pylist(), (row[index] for row in driver), (row[index] for row in texts), strict=True
        ):
            expected = from_driver(column.type, given_value)
            if policy != "error" and (declaration in UNREPRESENTABLE or declaration.startswith(("date", "timestamp"))):
                expected = text if pa.types.is_string(column.type) else holds(column.type, text)
            if isinstance(value, datetime.datetime):
                value = value.replace(tzinfo=None)
            assert same_bits(value, expected), (declaration, value, expected)
    return [list(row) for row in texts]


WRONG_THERE = [
    ("vector(3)", "TO_VECTOR('[1]')"),
    ("date", "'2024-02-31'"),
    ("date", "'0000-00-00'"),
    ("datetime(6)", "'2024-02-31 12:00:00'"),
    ("timestamp null", "'0000-00-00 00:00:00'"),
    ("time(3)", "'-00:00:01.25'"),
    ("year", "0"),
    ("binary(4)", "x'6100'"),
    ("varbinary(9)", "''"),
    *((f"varchar(9) character set {name}", text) for name, text in {
        "utf16": "'a'", "utf32": "'a'", "ucs2": "'a'", "utf16le": "'a'", "sjis": "x'815f'", "gb18030": "x'a8bc'",
        "big5": "x'f9d6'", "euckr": "x'8141'", "macce": "'č'", "hebrew": "x'af'", "greek": "x'a1'",
        "dec8": "'ÿ'", "swe7": "'é'", "armscii8": "'ա'", "geostd8": "'ა'", "keybcs2": "'ů'", "eucjpms": "'漢'",
    }.items()),
]  # fmt: skip


@pytest.mark.parametrize(("declaration", "value"), WRONG_THERE)
def test_where_the_other_reader_is_wrong_the_server_agrees_with_us(
    server: MysqlServer, declaration: str, value: str
) -> None:
    policy = "string" if declaration.startswith(("date", "timestamp")) else "error"
    server.query("DROP TABLE IF EXISTS any_row.t")
    server.query(f"CREATE TABLE any_row.t (id int PRIMARY KEY, c0 {declaration})")
    server.query("FLUSH BINARY LOGS")
    log = str(server.query("SHOW BINARY LOG STATUS")[0][0])
    table = replace(describe(server, "any_row", "t"), options=TableOptions(unrepresentable=policy))
    (event,) = logged(server, "any_row", [f"INSERT INTO t VALUES (1, {value})"])
    ours, _ = select(server, table)
    ((text,),) = judged(server, policy, [declaration], ours)
    assert same(decode(table, [event.body])[0], ours)
    assert any(other_reader.is_listed(listed, declaration, text) for listed in (other_reader.DIES, other_reader.WRONG))
    try:
        ((_, theirs),) = other_reader.read(server, log, "any_row", "t")
    except (NotImplementedError, ValueError, KeyError):
        return
    assert not other_reader.alike(ours["c0"][0].as_py(), theirs["c0"])


def test_each_place_where_the_other_reader_is_wrong_is_shown() -> None:
    for pattern in (*other_reader.DIES, *other_reader.WRONG):
        assert any(re.fullmatch(pattern, declaration) for declaration, _ in WRONG_THERE), pattern


@pytest.mark.long
@given(case=tables())
@given_settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_any_row_is_the_same_by_select_and_in_the_log(
    server: MysqlServer, case: tuple[str, list[str], list[tuple[Any, ...]]]
) -> None:
    policy, declarations, rows = case
    columns = ", ".join(f"c{number} {declaration}" for number, declaration in enumerate(declarations))
    server.query("DROP TABLE IF EXISTS any_row.t")
    server.query(f"CREATE TABLE any_row.t (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    server.query("FLUSH BINARY LOGS")
    log = str(server.query("SHOW BINARY LOG STATUS")[0][0])
    table = replace(describe(server, "any_row", "t"), options=TableOptions(unrepresentable=policy))
    assert len(table.columns) == len(declarations) + 1
    following = [*rows[1:], rows[0]]

    def insert(session: Any) -> None:
        with session.cursor() as cursor:
            for number, row in enumerate(rows):
                marks = ", ".join(["%s"] * len(row))
                cursor.execute(f"INSERT INTO t VALUES ({number}, {marks})", [parameter(value) for value in row])

    def update(session: Any) -> None:
        changes = ", ".join(f"c{number} = %s" for number in range(len(declarations)))
        with session.cursor() as cursor:
            for number, row in enumerate(following):
                cursor.execute(
                    f"UPDATE t SET id = id + 1000, {changes} WHERE id = {number}", [parameter(value) for value in row]
                )

    inserted = [image for event in logged_by(server, "any_row", insert) for image in split(table, event.body)]
    first, nulled = select(server, table)
    texts = judged(server, policy, declarations, first)
    updated = [image for event in logged_by(server, "any_row", update) for image in split(table, event.body)]
    second, _ = select(server, table)
    texts_after = judged(server, policy, declarations, second)
    deleted = [
        image
        for event in logged_by(server, "any_row", lambda session: session.cursor().execute("DELETE FROM t"))
        for image in split(table, event.body)
    ]

    for images, selected in ((inserted, first), (updated[::2], first), (updated[1::2], second), (deleted, second)):
        decoded, also_nulled = decode(table, images)
        assert same(decoded, selected)
        assert also_nulled == nulled

    if policy != "string" and not any(
        other_reader.is_listed(other_reader.DIES, declaration, row[index])
        for row in texts
        for index, declaration in enumerate(declarations)
    ):
        theirs: dict[str, list[other_reader.Values]] = {"insert": [], "before": [], "after": [], "delete": []}
        for kind, values in other_reader.read(server, log, "any_row", "t"):
            theirs[kind].append(values)
        same_as_the_other(declarations, first, texts, theirs["insert"])
        same_as_the_other(declarations, first, texts, theirs["before"])
        same_as_the_other(declarations, second, texts_after, theirs["after"])
        same_as_the_other(declarations, second, texts_after, theirs["delete"])


def same_as_the_other(
    declarations: list[str], ours: pa.Table, texts: list[list[str | None]], theirs: list[other_reader.Values]
) -> None:
    for index, declaration in enumerate(declarations):
        column = ours[f"c{index}"]
        for value, row, text in zip(column.to_pylist(), theirs, (row[index] for row in texts), strict=True):
            lost = value is None and text is not None
            if not lost and not other_reader.is_listed(other_reader.WRONG, declaration, text):
                expected = other_reader.in_its_form(declaration, column.type, value)
                given_value = other_reader.as_ours(declaration, row[f"c{index}"])
                assert other_reader.alike(expected, given_value), (declaration, text, expected, given_value)
