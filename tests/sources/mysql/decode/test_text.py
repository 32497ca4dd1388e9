"""Character sets: every code is converted as by the server, and rows and images give the same text."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.decode.columns import to_utf8
from airflow_provider_cdc.sources.mysql.tables.charsets import CHARSETS, bytes_per_character, has_gaps, is_ambiguous
from harness.mysql_server import MysqlServer
from tests.seeds import examples
from tests.sources.mysql.decode.reading import decode, select, split
from tests.sources.mysql.decode.row_images import describe, logged_by

LEGACY = [name for name, charset in CHARSETS.items() if charset.unit == 1 and charset.codec != "utf-8"]
UNICODE = [name for name in CHARSETS if name not in LEGACY and name != "ascii"]


def convert(charset: str, values: list[bytes], *, apart: bool = False) -> list[str]:
    offsets = pa.py_buffer(np.array([0, *accumulate(map(len, values))], np.int32))
    out_offsets, out = to_utf8("t.c", charset, len(values), offsets, pa.py_buffer(b"".join(values)), apart=apart)
    array = pa.StringArray.from_buffers(len(values), out_offsets, out)
    array.validate(full=True)
    return [str(text) for text in array.to_pylist()]


def refused(charset: str, value: bytes, *, apart: bool = False) -> bool:
    try:
        convert(charset, [value], apart=apart)
    except ValueNotRepresentable:
        return True
    return False


def servers_conversion(server: MysqlServer, schema: str, charset: str, codes: list[bytes]) -> dict[bytes, str]:
    """What the server converts each complete code of ``charset`` to; ``?`` and U+FFFD mean that it is no character."""
    found: dict[bytes, str] = {}
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE {schema}.codes (id int PRIMARY KEY, b varbinary(4))")
        for start in range(0, len(codes), 10_000):
            part = list(enumerate(codes[start : start + 10_000], start))
            cursor.executemany(f"INSERT INTO {schema}.codes VALUES (%s, %s)", part)
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"SELECT id, CONVERT(CONVERT(b USING {charset}) USING utf8mb4) FROM {schema}.codes")
        for number, text in cursor.fetchall():
            # Bytes that are an incomplete character vanish.
            if text:
                found[codes[number]] = text
    return found


def test_the_table_has_the_servers_lengths(mysql: MysqlServer) -> None:
    for name, most in mysql.query("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"):
        assert bytes_per_character(name) == (None if name == "binary" else most)


@pytest.mark.slow
@pytest.mark.parametrize("charset", LEGACY)
def test_every_code_as_the_server_converts_it(mysql: MysqlServer, schema: str, charset: str) -> None:
    codes = [bytes([code]) for code in range(256)]
    found = servers_conversion(mysql, schema, charset, codes)
    # Codes of four bytes are in the test of all of Unicode.
    for size in range(2, min(CHARSETS[charset].size, 3 if charset in ("ujis", "eucjpms") else 2) + 1):
        leads = [code for code in codes if len(code) == size - 1 and code not in found]
        if size == 3:
            leads = [code for code in leads if code[0] == 0x8F]
        longer = [lead + bytes([code]) for lead in leads for code in range(256)]
        found |= servers_conversion(mysql, schema, charset, longer)
        codes += longer
    mapped = {code: text for code, text in found.items() if code == b"?" or not set(text) & {"?", "\ufffd"}}
    assert all(len(text) == 1 for text in mapped.values())
    assert len(mapped) > (200 if CHARSETS[charset].ascii else 120)
    assert convert(charset, list(mapped)) == list(mapped.values())
    assert [code for code in codes if code not in mapped and not refused(charset, code)] == []
    assert is_ambiguous(charset) == (len(set(mapped.values())) < len(mapped))
    if is_ambiguous(charset):
        # In a key, no two codes become one text, and no text is lost.
        kept = [code for code in mapped if not refused(charset, code, apart=True)]
        assert sorted(convert(charset, kept, apart=True)) == sorted(set(mapped.values()))
        assert [code for code in mapped if len(code) == 1 and code.isascii() and code not in kept] == []
    if charset == "gb18030":
        # Its gaps are among the codes of four bytes; this one is the first beyond Unicode.
        found |= servers_conversion(mysql, schema, charset, [bytes.fromhex("e3329a36")])
        assert refused(charset, bytes.fromhex("e3329a36"))
    assert has_gaps(charset) == (len(mapped) < len(found))


@pytest.mark.parametrize("charset", [*UNICODE, "gb18030"])
def test_every_character_of_unicode(mysql: MysqlServer, charset: str) -> None:
    last = 0x10000 if charset in ("ucs2", "utf8mb3") else 0x110000
    characters = [chr(point) for point in range(1, last) if not 0xD800 <= point < 0xE000]
    texts = ["".join(characters[start : start + 30_000]) for start in range(0, len(characters), 30_000)]
    with mysql.connect() as connection, connection.cursor() as cursor:
        stored = []
        for text in texts:
            cursor.execute(f"SELECT CAST(CONVERT(%s USING {charset}) AS BINARY)", (text,))
            stored.append(cursor.fetchone()[0])
    assert convert(charset, stored) == texts


@pytest.mark.parametrize(
    ("charset", "value"),
    [
        ("utf8mb4", b"\xc3"),
        ("utf8mb4", b"\xed\xa0\x80"),
        ("utf8mb3", b"\x80"),
        ("utf8mb3", "😀".encode()),
        ("ascii", "é".encode()),
        ("ucs2", b"\xd8\x00"),
        ("ucs2", b"\x00"),
        ("utf16", b"\xd8\x00\x00A"),
        ("utf16", b"\xdc\x00"),
        ("utf16le", b"\x00\xd8"),
        ("utf32", b"\x00\x11\x00\x00"),
        ("utf32", b"\xff\xff\xff\xff"),
        ("gbk", b"\x81"),
        ("sjis", b"\x81"),
        ("gb18030", b"\x81\x30"),
        ("tis620", b"\xa0"),
        ("dec8", b"\xa4"),
        ("swe7", b"\x7f"),
        ("swe7", b"\x80"),
        ("geostd8", b"\xff"),
        ("ujis", b"\xa4"),
        ("ujis", b"\x8e"),
        ("ujis", b"\x8f"),
        ("ujis", b"\x8f\xa2"),
        ("ujis", b"\x8f\xa2\x7e"),
        ("eucjpms", b"\x80"),
        ("eucjpms", b"\x8f\xf4"),
    ],
)
def test_bytes_that_are_not_text_are_named(charset: str, value: bytes) -> None:
    with pytest.raises(ValueNotRepresentable, match=f"x'{value.hex()}' .* {charset}") as caught:
        convert(charset, [b"", value])
    assert caught.value.where == "t.c"


SAMPLES = {
    "latin1": "é€ÿ\x81", "greek": "αβγ", "hebrew": "שלום", "cp1251": "Привет", "koi8r": "Привет", "gbk": "漢字",
    "sjis": "日本ｱ", "cp932": "日本ｱ①", "big5": "漢字", "euckr": "한글", "gb2312": "汉字", "gb18030": "汉😀",
    "tis620": "ไทย", "latin2": "žluť", "ascii": "plain", "dec8": "œÿ¤", "swe7": "ÉÜéåü", "armscii8": "Հայ՞",
    "geostd8": "ქართ№", "keybcs2": "Čůň█", "ujis": "日本ｱ丂\ue000\ue757", "eucjpms": "日本ｱ丂①纊髙\ue757",
}  # fmt: skip


@pytest.mark.parametrize("charset", CHARSETS)
def test_rows_and_images_give_the_same_text(mysql: MysqlServer, schema: str, charset: str) -> None:
    sample = SAMPLES.get(charset, "aé漢😀" if charset not in ("ucs2", "utf8mb3") and charset in UNICODE else "aé")
    if charset not in UNICODE and charset not in SAMPLES:
        sample = "a!~"
    label = sample.replace("😀", "")
    mysql.query(
        f"CREATE TABLE {schema}.t (id int PRIMARY KEY, c char(9), v varchar(9), w varchar(200), x tinytext, y longtext,"
        f" e enum('a', '{label}'), s set('a', '{label}')) CHARACTER SET {charset}"
    )
    table = describe(mysql, schema, "t")
    texts = ["", " padded ", sample, f"{sample} ", (sample * 9)[:9], "x" * 9]
    with mysql.connect(database=schema, charset="utf8mb4") as connection, connection.cursor() as cursor:

        def work(session: object) -> None:
            for number, text in enumerate(texts):
                row = (number, *[text] * 5, label, f"a,{label}")
                cursor.execute("INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", row)

        events = logged_by(mysql, schema, work)
        cursor.execute("SELECT * FROM t ORDER BY id")
        driver = [list(row) for row in cursor.fetchall()]
    selected = select(mysql, table)
    assert [list(row.values()) for row in selected.to_pylist()] == driver
    assert selected["v"].to_pylist() == texts
    images = [image for event in events for image in split(table, event.body)]
    assert decode(table, images).equals(selected)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=20))
@given_settings(deadline=None, max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
def test_text_survives_the_unicode_encodings(texts: list[str]) -> None:
    for charset in ("utf8mb4", "utf16", "utf16le", "utf32"):
        assert convert(charset, [text.encode(CHARSETS[charset].codec) for text in texts]) == texts
