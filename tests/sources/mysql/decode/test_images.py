"""Row images of the binary log hold the same rows as a SELECT, and are safe to walk whatever the bytes are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.kernels import bytes_of
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.decode.images import (
    TRUNCATED,
    decode_images,
    expected_table_map,
    image_layout,
    skip_image,
)
from harness.mysql_server import MysqlServer
from tests.seeds import SOAK_SEED, examples
from tests.sources.guarded import guarded
from tests.sources.mysql.decode.reading import decode, same, select, split
from tests.sources.mysql.decode.row_images import (
    DELETE_ROWS,
    UPDATE_ROWS,
    WRITE_ROWS,
    describe,
    logged,
)
from tests.sources.mysql.values import (
    CASES,
    UNREPRESENTABLE,
    Case,
    as_driver,
    create_table,
    from_driver,
    independent,
    rows_of,
    same_bits,
)

GROUPS = [CASES[start : start + 45] for start in range(0, len(CASES), 45)]


@pytest.mark.parametrize("cases", GROUPS, ids=lambda cases: cases[0].declaration.split("(")[0])
def test_every_type_at_its_extremes(mysql: MysqlServer, schema: str, cases: tuple[Case, ...]) -> None:
    rows = rows_of(cases)
    names = [f"c{number}" for number in range(len(cases))]
    mysql.query(create_table(f"{schema}.t", cases))
    table = describe(mysql, schema, "t")

    inserted = logged(
        mysql, schema, [f"INSERT INTO t VALUES ({number}, {', '.join(row)})" for number, row in enumerate(rows)]
    )
    assert {event.kind for event in inserted} == {WRITE_ROWS}
    for event in inserted:
        assert (event.types, event.metadata) == expected_table_map(table)

    selected = select(mysql, table)
    columns = ", ".join(independent(case.declaration, name) for case, name in zip(cases, names, strict=True))
    driver = mysql.query(f"SELECT {columns} FROM {schema}.t ORDER BY id")
    for index, name in enumerate(names):
        kind = selected.schema.field(name).type
        for ours, theirs in zip(selected[name].to_pylist(), (row[index] for row in driver), strict=True):
            assert same_bits(as_driver(kind, ours), from_driver(kind, theirs)), (cases[index].declaration, ours, theirs)

    assert same(decode(table, [event.body for event in inserted]), selected)

    # Every row becomes the next one, so that each value is an after image and then a before image.
    updated = logged(mysql, schema, ["UPDATE t SET id = -id - 1", "DELETE FROM t"])
    pairs = [split(table, event.body) for event in updated if event.kind == UPDATE_ROWS]
    before = [image for images in pairs for image in images[::2]]
    after = [image for images in pairs for image in images[1::2]]
    assert same(decode(table, before), selected)
    assert same(decode(table, after).drop_columns("id"), selected.drop_columns("id"))
    deleted = [image for event in updated if event.kind == DELETE_ROWS for image in split(table, event.body)]
    assert same(decode(table, deleted).sort_by([("id", "descending")]).drop_columns("id"), selected.drop_columns("id"))


def test_columns_that_select_hides_or_the_server_computes(mysql: MysqlServer, schema: str) -> None:
    mysql.query(
        f"CREATE TABLE {schema}.t (a int PRIMARY KEY, j json, secret int INVISIBLE DEFAULT 7, "
        "virtual_sum int AS (a + 1) VIRTUAL, stored_sum int AS (a + 2) STORED, indexed int AS (a * 2) VIRTUAL, "
        "hash binary(4) AS (x'61') VIRTUAL, INDEX (indexed), INDEX functional ((a + 1)), "
        "INDEX many ((CAST(j->'$.x' AS UNSIGNED ARRAY))))"
    )
    mysql.query(f"ALTER TABLE {schema}.t ADD COLUMN late varchar(5) DEFAULT 'l', ALGORITHM=INSTANT")
    mysql.query(f"ALTER TABLE {schema}.t ADD COLUMN first_of_all int DEFAULT 3 FIRST, ALGORITHM=INSTANT")
    mysql.query(f"ALTER TABLE {schema}.t ADD COLUMN passing int DEFAULT 3, ALGORITHM=INSTANT")
    mysql.query(f"ALTER TABLE {schema}.t DROP COLUMN passing, ALGORITHM=INSTANT")
    table = describe(mysql, schema, "t")
    assert [column.name for column in table.columns][:3] == ["first_of_all", "a", "j"]
    events = logged(mysql, schema, ["INSERT INTO t (a, j, secret) VALUES (1, '{\"x\": [1]}', 9), (5, NULL, NULL)"])
    selected = select(mysql, table)
    events += logged(mysql, schema, ["UPDATE t SET j = NULL", "DELETE FROM t"])
    assert [(event.types, event.metadata) for event in events] == [expected_table_map(table)] * 3
    inserted, updated, deleted = (split(table, event.body) for event in events)
    assert selected["secret"].to_pylist() == [9, None]
    assert selected["hash"].to_pylist() == [b"a\0\0\0"] * 2
    assert same(decode(table, inserted), selected)
    assert same(decode(table, updated[:1] + inserted[1:]), selected)
    without = selected.set_column(2, selected.schema.field(2), pa.array([None, None], pa.utf8()))
    assert same(decode(table, deleted), without)


def test_a_generated_invisible_primary_key(mysql: MysqlServer, schema: str) -> None:
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE t (a int)")
    table = describe(mysql, schema, "t")
    assert table.key == ("my_row_id",)
    (event,) = logged(mysql, schema, ["INSERT INTO t VALUES (4), (5)"])
    assert (event.types, event.metadata) == expected_table_map(table)
    assert decode(table, split(table, event.body)).to_pydict() == {"my_row_id": [1, 2], "a": [4, 5]}


def test_where_the_key_lies(mysql: MysqlServer, schema: str) -> None:
    mysql.query(
        f"CREATE TABLE {schema}.t (n int, a varchar(300) NOT NULL, d decimal(9,2) NOT NULL, b varbinary(20), "
        "PRIMARY KEY (d, a))"
    )
    table = describe(mysql, schema, "t")
    (event,) = logged(mysql, schema, ["INSERT INTO t VALUES (NULL, 'some key', 1.5, 'x'), (1, '', -1.5, NULL)"])
    layout = image_layout(table)
    data, ranges, position, found = np.frombuffer(event.body, np.uint8), np.zeros(4, np.int64), 0, []
    while position < len(data):
        position = skip_image(data, position, len(data), layout.prefixes, layout.widths, layout.slots, ranges)
        found.append([event.body[start:end] for start, end in ranges.reshape(2, 2)])
    assert found == [[bytes.fromhex("8000000132"), b"some key"], [bytes.fromhex("7ffffffecd"), b""]]


@pytest.mark.parametrize("value", ["0000-00-00", "2024-00-15", "2024-05-00", "2023-02-29", "0000-01-00"])
@pytest.mark.parametrize("kind", ["date", "datetime", "datetime(3)"])
def test_a_date_that_no_calendar_has_is_named(mysql: MysqlServer, schema: str, kind: str, value: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, d {kind})")
    table = describe(mysql, schema, "t")
    (event,) = logged(mysql, schema, [f"INSERT INTO t VALUES (0, NULL), (1, '2024-01-01'), (2, '{value}')"])
    reads: list[Callable[[], pa.Table]] = [
        lambda: select(mysql, table),
        lambda: decode(table, split(table, event.body)),
    ]
    for read in reads:
        with pytest.raises(ValueNotRepresentable, match=value) as caught:
            read()
        assert caught.value.where == f"{schema}.t.d"


def test_a_zero_timestamp_is_named(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (d timestamp NULL)")
    table = describe(mysql, schema, "t")
    (event,) = logged(mysql, schema, ["INSERT INTO t VALUES ('0000-00-00')"])
    reads: list[Callable[[], pa.Table]] = [
        lambda: select(mysql, table),
        lambda: decode(table, split(table, event.body)),
    ]
    for read in reads:
        with pytest.raises(ValueNotRepresentable, match="0000-00-00 00:00:00"):
            read()


def test_an_image_of_more_than_16_megabytes(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, b longblob)")
    table = describe(mysql, schema, "t")
    (event,) = logged(mysql, schema, ["INSERT INTO t VALUES (1, REPEAT('ab', 12000000))"])
    assert same(decode(table, [event.body]), select(mysql, table))


def test_no_images_and_a_slice_of_images(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v varchar(9), b bit(1), s set('x'), e enum('y'))")
    table = describe(mysql, schema, "t")
    assert decode(table, []).num_rows == 0
    (event,) = logged(
        mysql, schema, ["INSERT INTO t VALUES (1,'a',1,'x','y'),(2,NULL,NULL,NULL,NULL),(3,'c',0,'','y')"]
    )
    images = pa.array([b"", *split(table, event.body)], pa.binary()).slice(2)
    assert decode_images(table, images).to_pydict() == {
        "id": [2, 3],
        "v": [None, "c"],
        "b": [None, False],
        "s": [None, ""],
        "e": [None, "y"],
    }


NO_DECIMALS = [case for case in CASES if not case.declaration.startswith("decimal") or "20" in case.declaration]
# Rows of at most a few thousand bytes, so that flipped bits do not all hit one large value.
SHORT = ("geom", "point", "vector(3", "vector(1)", "json", "set")
SPATIAL = [case for case in CASES if case.declaration.startswith(SHORT)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "policy"),
    [(NO_DECIMALS[:60], "error"), (SPATIAL, "error"), (UNREPRESENTABLE, "string"), (UNREPRESENTABLE, "null")],
    ids=["plain", "spatial", "string", "null"],
)
def test_a_damaged_image_is_refused_and_nothing_after_it_is_read(
    mysql: MysqlServer, schema: str, cases: Sequence[Case], policy: str
) -> None:
    mysql.query(create_table(f"{schema}.t", cases))
    table = replace(describe(mysql, schema, "t"), options=TableOptions(unrepresentable=policy))
    rows = rows_of(cases)[1:4]
    statements = [f"INSERT INTO t VALUES ({number}, {', '.join(row)})" for number, row in enumerate(rows)]
    images = [event.body for event in logged(mysql, schema, statements)]
    layout = image_layout(table)
    seed = SOAK_SEED or 0
    chance = random.Random(seed)
    print(f"seed {seed}")
    outcomes = {True: 0, False: 0}
    rounds = examples(150)
    for round_ in range(rounds):
        image = bytearray(chance.choice(images))
        if round_ % 2:
            del image[chance.randrange(len(image)) :]
        for _ in range(chance.randrange(1, 4)):
            if image:
                image[chance.randrange(len(image))] ^= 1 << chance.randrange(8)
        with guarded(bytes(image)) as buffer:
            data = bytes_of(buffer)
            end = skip_image(
                data, 0, len(data), layout.prefixes, layout.widths, layout.slots, np.zeros(2 * layout.keys, np.int64)
            )
            assert end == TRUNCATED or 0 < end <= len(data)
            offsets = pa.py_buffer(np.array([0, len(image)], np.int32))
            array = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, buffer])
            try:
                decode_images(table, array).validate(full=True)
                outcomes[True] += 1
            except (DecodeError, ValueNotRepresentable):
                outcomes[False] += 1
    # Flipping a bit of a number gives another number; but a shorter image is never a row.
    assert outcomes[False] > 0.47 * rounds
    assert outcomes[True] > 0.02 * rounds
