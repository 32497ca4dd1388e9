"""The log reader's kernel, compared with the specification, and with malformed messages."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.net_change import Change, net, net_counts
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    DecodeError,
    ImageNotWhole,
    LogGone,
    PositionError,
    SchemaChanged,
    UnknownEvent,
)
from airflow_provider_cdc.sources.api.window import DELTA_SCHEMA, TrackedTable
from airflow_provider_cdc.sources.log.delta import delta_batches
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log import walk_state
from airflow_provider_cdc.sources.postgres.log.walker import LogWalker
from airflow_provider_cdc.sources.postgres.server import pgoutput
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION
from airflow_provider_cdc.sources.postgres.slots.waits import EndMark
from tests.seeds import seeds
from tests.sources.guarded import guarded
from tests.sources.postgres.log.messages import begin, change, commit, relation, said, truncate, tuple_data

INT4, TEXT = 23, 25
COLUMNS = [("id", INT4, -1), ("v", TEXT, -1)]
A, K, P, LEAF, TURNED, STRANGER = 1001, 1002, 1003, 1004, 1005, 1006


LEAVES = [[LEAF, "public", "l", 1, "f", "", []], [TURNED, "public", "t", 2, "f", "", [1, 0]]]


def table(name: str, oid: int, key: tuple[str, ...], leaves: Sequence[Sequence[object]] = ()) -> Table:
    def details(kind: int) -> dict[str, str | int | bool]:
        return {"oid": kind, "typmod": -1, "kind": "base", "base_oid": kind, "base_typmod": -1, "relation": oid}

    columns = tuple(Column(column, column, column not in key, details(kind)) for column, kind, _ in COLUMNS)
    return Table(TableName("public", name), columns, key, details={"leaves": leaves})


INITIAL, STOP, UPPER = 100, 10_000, 5_000
TRACKED = [
    TrackedTable(0, table("a", A, ("id",))),
    TrackedTable(1, table("k", K, ()), Lsn(UPPER)),
    TrackedTable(2, table("p", P, ("id",), LEAVES)),
]
RELATIONS = [
    relation(A, "a", COLUMNS),
    relation(K, "k", COLUMNS),
    relation(P, "p", COLUMNS),
    relation(LEAF, "l", COLUMNS),
    relation(TURNED, "t", COLUMNS[::-1]),
]

Event = tuple[tuple[int, str | None] | None, tuple[int, str | None] | None]


def walker(mark: EndMark | None = None) -> LogWalker:
    return LogWalker("slot", Lsn(INITIAL), Lsn(STOP), TRACKED, mark)


def binary(messages: Sequence[bytes]) -> pa.BinaryArray:
    return pa.array(messages, pa.binary())


def walked(messages: Sequence[bytes], step: int = 1000, mark: EndMark | None = None) -> LogWalker:
    found = walker(mark)
    for start in range(0, len(messages), step):
        # A batch may be a part of a larger one.
        array = binary([b"?", *messages[start : start + step]]).slice(1)
        if found.run(array):
            break
    found.close()
    return found


def transaction(*changes: bytes, at: int = 200) -> list[bytes]:
    return [begin(at), *RELATIONS, *changes, commit(at)]


def texts(row: tuple[int, str | None] | None) -> list[str | None] | None:
    return None if row is None else [str(row[0]), row[1]]


def found_by(one: LogWalker, segment: int = 0) -> list[dict[str, Any]]:
    """In the order of the log, table by table."""
    batches = list(delta_batches(one.change, TRACKED, segment, decode_images))
    assert all(batch.schema.equals(DELTA_SCHEMA) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["table"], row["order"]))


def key(number: int) -> bytes:
    return b"\1" + struct.pack("<i", number)


ROWS = st.tuples(st.integers(-3, 3), st.sampled_from([None, "", "x", "long" * 9]))
EVENTS = st.one_of(st.tuples(st.none(), ROWS), st.tuples(ROWS, st.none()), st.tuples(ROWS, ROWS))


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.lists(EVENTS, max_size=8), st.lists(EVENTS, max_size=8)), max_size=5),
    st.sampled_from([1, 2, 7, 1000]),
    st.booleans(),
)
def test_nets_as_the_specification_says(
    transactions: list[tuple[list[Event], list[Event]]], step: int, toast: bool
) -> None:
    messages: list[bytes] = []
    keyed: list[dict[int, Change[tuple[int, str | None]]]] = []
    keyless: list[Event] = []

    def message(oid: int, event: Event) -> bytes:
        old, new = texts(event[0]), texts(event[1])
        if toast and old and new and old[1] == new[1] and old[1]:
            return change(oid, old, [new[0], ...])
        return change(oid, old, new)

    for number, (rows, others) in enumerate(transactions):
        changes = [message(A, event) for event in rows] + [message(K, event) for event in others]
        messages += transaction(*changes, at=200 + 100 * number)
        for old, new in rows:
            if old and new and old[0] == new[0]:
                keyed.append({old[0]: Change(old, new)})
            else:
                keyed += [{old[0]: Change(old, None)}] if old else []
                keyed += [{new[0]: Change(None, new)}] if new else []
        keyless += others
    rows_found = found_by(walked(messages, step))
    befores = {row["key"]: row["before"] for row in rows_found if row["table"] == 0}
    counts = {row["before"]: row["count"] for row in rows_found if row["table"] == 1}
    image: Callable[[tuple[int, str | None]], bytes] = lambda row: tuple_data(texts(row) or [])  # noqa: E731
    assert befores == {key(number): image(one.before) if one.before else None for number, one in net(keyed).items()}
    assert counts == {image(row): count for row, count in net_counts(keyless).items()}


def test_transactions_count_by_where_their_commits_begin() -> None:
    """From the initial position to the end, excluded; for keyless tables to their own bound, excluded."""
    messages: list[bytes] = []
    for number, at in enumerate([INITIAL - 1, INITIAL, UPPER - 1, UPPER, STOP - 1, STOP, STOP + 1]):
        row = [str(number), None]
        messages += transaction(change(A, None, row), change(K, None, row), at=at)
    one = walked(messages)
    rows = found_by(one)
    assert [row["key"] for row in rows if row["table"] == 0] == [key(1), key(2), key(3), key(4)]
    assert [row["before"] for row in rows if row["table"] == 1] == [tuple_data(["1", None]), tuple_data(["2", None])]
    assert one.state[walk_state.TRANSACTIONS] == 4
    assert one.state[walk_state.IMAGES] == 6


def test_partitions_by_their_own_names_are_parts_of_their_root() -> None:
    """Also where one has its columns in another order than the root."""
    rows = [
        change(LEAF, ["1", "a"], ["1", "b"]), change(TURNED, ["long" * 9, "2"], [..., "3"]),
        change(P, ["4", "d"], None), change(TURNED, None, [None, "5"]), change(LEAF, ["5", "e"], None),
    ]  # fmt: skip
    found = {row["key"]: row["before"] for row in found_by(walked(transaction(*rows), 2))}
    assert found == {
        key(1): tuple_data(["1", "a"]), key(2): tuple_data(["2", "long" * 9]), key(3): None,
        key(4): tuple_data(["4", "d"]), key(5): None,
    }  # fmt: skip


def test_a_keyless_table_without_a_bound() -> None:
    with pytest.raises(PositionError):
        LogWalker("slot", Lsn(1), Lsn(2), [TrackedTable(0, table("k", K, ()))])


def test_orders_grow_along_the_log_and_segments() -> None:
    rows = found_by(walked(transaction(*(change(A, None, [str(number), None]) for number in range(5)))), 2)
    assert [row["order"] for row in rows] == [(2 << 40) + number for number in range(1, 6)]


def test_more_relations_than_the_first_table_holds() -> None:
    others = [relation(5000 + number * 64, f"t{number}", COLUMNS) for number in range(1000)]
    rows = [change(5000 + number * 64, None, ["1", None]) for number in range(1000)]
    one = walked([*transaction(*others, *rows), *transaction(change(A, None, ["7", None]), *rows, at=300)])
    assert [row["key"] for row in found_by(one)] == [key(7)]


def test_a_relation_that_is_described_again() -> None:
    one = walked([*transaction(change(A, None, ["7", None])), *transaction(change(A, None, ["8", None]), at=300)])
    assert [row["key"] for row in found_by(one)] == [key(7), key(8)]


ROW = ["1", "x"]
OTHER_SHAPE = "a row has other columns"

REFUSED: dict[str, tuple[list[bytes], type[CdcError], str]] = {
    "a row outside of a transaction": ([change(A, None, ROW)], DecodeError, "no message of its kind"),
    "a description outside of a transaction": ([relation(A, "a", COLUMNS)], DecodeError, "no message of its kind"),
    "a TRUNCATE outside of a transaction": ([truncate(A)], DecodeError, "no message of its kind"),
    "a transaction within another": ([begin(200), begin(300)], DecodeError, "no message of its kind"),
    "a commit without a transaction": ([commit(200)], DecodeError, "no message of its kind"),
    "a commit of another transaction": ([begin(200), commit(300)], DecodeError, "not after the previous one"),
    "a commit with flags": ([begin(200), commit(200, 1)], DecodeError, "not after the previous one"),
    "commits out of order": ([*transaction(at=300), begin(200)], DecodeError, "not after the previous one"),
    "commits at the same place": ([*transaction(at=300), begin(300)], DecodeError, "not after the previous one"),
    "a commit before the log": ([begin(2**63 + 5)], DecodeError, "not after the previous one"),
    "an end within a transaction": ([begin(200)], DecodeError, "ends within a transaction"),
    "a row of a table that was not described": ([begin(200), change(A, None, ROW)], DecodeError, "not described"),
    "a long Stream Abort": ([b"A" + bytes(16)], DecodeError, "impossible length"),
    "an empty message": ([b""], DecodeError, "impossible length"),
    "a short Begin": ([begin(200)[:-1]], DecodeError, "impossible length"),
    "a long Commit": ([begin(200), commit(200) + b"\0"], DecodeError, "impossible length"),
    "a row with bytes behind it": (transaction(change(A, None, ROW) + b"\0"), DecodeError, "impossible length"),
    "a row without a tuple": (transaction(b"I" + struct.pack(">I", A)), DecodeError, "impossible length"),
    "an unknown tuple": (transaction(b"I" + struct.pack(">I", A) + b"X" + tuple_data(ROW)), DecodeError, "malformed"),
    "an INSERT with an unchanged value": (transaction(change(A, None, ["1", ...])), DecodeError, "malformed"),
    "a binary value": (transaction(change(A, None, ROW).replace(b"t", b"b")), DecodeError, "malformed"),
    "an UPDATE without its old row": (transaction(b"U" + change(A, None, ROW)[1:]), ImageNotWhole, "public.a at"),
    "an UPDATE with its old key only": (transaction(change(A, ROW, ROW, b"K")), ImageNotWhole, "replica identity"),
    "a DELETE with its key only": (transaction(change(A, ROW, None, b"K")), ImageNotWhole, "ALTER TABLE"),
    "an old row without a value": (transaction(change(A, ["1", ...], None)), ImageNotWhole, "replica identity"),
    "too many columns": (transaction(change(A, None, ["1", "x", "y"])), SchemaChanged, OTHER_SHAPE),
    "too few columns": (transaction(change(A, ["1"], None)), SchemaChanged, OTHER_SHAPE),
    "a NULL in the key": (transaction(change(A, None, [None, "x"])), SchemaChanged, OTHER_SHAPE),
    "a TRUNCATE": (transaction(truncate(STRANGER, A)), SchemaChanged, "TRUNCATE of a table"),
    "a TRUNCATE of a partition": (transaction(truncate(LEAF)), SchemaChanged, "public.p at"),
    "another replica identity": ([begin(200), relation(A, "a", COLUMNS, identity="d")], SchemaChanged, "not FULL"),
    "another replica identity of a partition": (
        [begin(200), relation(LEAF, "l", COLUMNS, identity="d")], SchemaChanged, "public.p, partition public.l",
    ),
    "a table that was renamed": ([begin(200), relation(A, "b", COLUMNS)], SchemaChanged, "now called public.b"),
    "a table that took its name": ([begin(200), relation(STRANGER, "a", COLUMNS)], SchemaChanged, "another table"),
    "a description in a transaction that does not count": (
        [begin(50), relation(A, "b", COLUMNS)], SchemaChanged, "now called public.b",
    ),
    "a column more": ([begin(200), relation(A, "a", [*COLUMNS, ("w", TEXT, -1)])], SchemaChanged, r"\(w\)"),
    "a column less": ([begin(200), relation(A, "a", COLUMNS[:1])], SchemaChanged, r"\(v\)"),
    "a column of another type": (
        [begin(200), relation(A, "a", [COLUMNS[0], ("v", 1043, -1)])], SchemaChanged, r"\(v\)",
    ),
    "a column of another length": (
        [begin(200), relation(A, "a", [COLUMNS[0], ("v", TEXT, 9)])], SchemaChanged, r"\(v\)",
    ),
    "columns in another order": ([begin(200), relation(A, "a", COLUMNS[::-1])], SchemaChanged, "their order"),
    "a partition that was renamed": ([begin(200), relation(LEAF, "m", COLUMNS)], SchemaChanged, "now called public.m"),
    "columns of a partition in another order": (
        [begin(200), relation(LEAF, "l", COLUMNS[::-1])], SchemaChanged, "their order",
    ),
    "columns of a partition in the order of its root": (
        [begin(200), relation(TURNED, "t", COLUMNS)], SchemaChanged, "their order",
    ),
    "an unknown tuple of a turned partition": (
        transaction(b"I" + struct.pack(">I", TURNED) + b"X" + tuple_data(ROW)), DecodeError, "malformed",
    ),
    "too many columns of a turned partition": (
        transaction(change(TURNED, None, ["1", "x", "y"])), SchemaChanged, OTHER_SHAPE,
    ),
    "a turned partition's old key only": (transaction(change(TURNED, ROW, None, b"K")), ImageNotWhole, "not FULL"),
    **{
        f"a message of type {kind}": ([begin(200), kind.encode() + bytes(30)], UnknownEvent, f"type '{kind}'")
        for kind in ["b", "P", "K", "r", "p", "S", "E", "c", "A", "X", "q"]
    },
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_stops_the_run(what: str) -> None:
    messages, error, text = REFUSED[what]
    with pytest.raises(error, match=text):
        walked(messages)


HARMLESS: dict[str, list[bytes]] = {
    "of a transaction that does not count": [
        begin(50), *RELATIONS, truncate(A), change(A, None, ROW), change(LEAF, None, ROW), commit(50),
    ],
    "of another table": [
        begin(200), relation(STRANGER, "s", COLUMNS[:1], identity="n"), change(STRANGER, ["1"], None, b"K"),
        truncate(STRANGER), commit(200),
    ],
    "a transaction that was rolled back, of which nothing was said": [
        b"A" + bytes(8), begin(200), commit(200), b"A" + struct.pack(">II", 200, 201),
    ],
    "messages, types and origins": [
        b"M\0" + bytes(40), begin(200), b"O" + bytes(8) + b"o\0", b"Y" + bytes(12), b"M\1" + bytes(40), commit(200),
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_ignored(what: str) -> None:
    assert found_by(walked(HARMLESS[what])) == []


MARK = EndMark(Lsn(500), "0123abcd")
OURS = said(510, APPLICATION, b"0123abcd")

MARKED: dict[str, tuple[list[bytes], type[CdcError] | None]] = {
    "after the last transaction": ([*transaction(), OURS], None),
    "in the middle of a transaction": ([begin(200), *RELATIONS, OURS, change(A, None, ROW), commit(200)], None),
    "among those of others": (
        [said(505, "x", b"y"), said(508, APPLICATION, b"another"), OURS, said(600, "x", b"")],
        None,
    ),
    "at the first place": ([said(500, APPLICATION, b"0123abcd")], None),
    "nowhere": (transaction(), LogGone),
    "of others only": ([said(510, "x", b"0123abcd"), said(511, APPLICATION, b"0123abce")], LogGone),
    "of an earlier place": ([said(499, APPLICATION, b"0123abcd")], LogGone),
    "after the end": ([begin(STOP), OURS], LogGone),
    "cut short": ([OURS[:-1]], DecodeError),
    "too long": ([OURS + b"x"], DecodeError),
    "without an end of its prefix": ([b"M\0" + struct.pack(">Q", 510) + b"x" * 8], DecodeError),
    "without a length": ([b"M\0" + struct.pack(">Q", 510) + b"xxxx\0\0"], DecodeError),
    "without a place": ([b"M\0" + bytes(7)], DecodeError),
}


@pytest.mark.parametrize("what", MARKED)
def test_the_mark_that_the_reads_ended_with_must_be_met(what: str) -> None:
    messages, error = MARKED[what]
    with pytest.raises(error) if error else contextlib.nullcontext():
        walked(messages, mark=MARK)


def sample() -> list[bytes]:
    wide = "w" * 300
    return [
        *transaction(
            change(A, None, ROW), change(A, ROW, ["1", ...]), change(A, ["2", wide], ["3", ...]),
            change(A, ["4", None], None), change(K, None, ROW), change(K, ["5", wide], ["6", ...]), change(P, ROW, ROW),
            change(TURNED, [wide, "5"], [..., "6"]), change(LEAF, ["7", None], None),
        ),
        begin(300), b"Y" + bytes(12), truncate(STRANGER), relation(STRANGER, "s", COLUMNS),
        change(STRANGER, None, ROW), commit(300),
    ]  # fmt: skip


def walked_in(memory: pa.Buffer, ends: Sequence[int]) -> LogWalker:
    """Walk messages in memory that must not be read beyond its end."""
    offsets = pa.py_buffer(np.array(ends, np.int32))
    one = walker()
    one.run(pa.BinaryArray.from_buffers(pa.binary(), len(ends) - 1, [None, offsets, memory]))
    one.close()
    return one


def run_guarded(messages: Sequence[bytes]) -> str:
    with guarded(b"".join(messages)) as memory:
        try:
            found_by(walked_in(memory, np.cumsum([0, *map(len, messages)]).tolist()))
        except CdcError as error:
            return type(error).__name__
    return "read"


def test_the_sample_is_sound() -> None:
    assert run_guarded(sample()) == "read"
    assert len(found_by(walked(sample()))) == 11


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_spoilt_messages(seed: int) -> None:
    """Damage may cause an error or another result, but never a read beyond the bytes."""
    rng = random.Random(seed)
    outcomes = set()
    for _ in range(500):
        messages = sample()
        chosen = rng.randrange(len(messages))
        spoilt = bytearray(messages[chosen])
        for _ in range(rng.choice((1, 1, 2, 5))):
            spoilt[rng.randrange(len(spoilt))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, *b"ntubONK", rng.randrange(256)))
        if rng.random() < 0.3:
            del spoilt[rng.randrange(len(spoilt) + 1) :]
        messages[chosen] = bytes(spoilt)
        outcomes.add(run_guarded(messages))
    assert {"DecodeError", "SchemaChanged"} <= outcomes


@pytest.mark.slow
def test_every_flipped_bit_is_survived() -> None:
    for number, message in enumerate(sample()):
        for bit in range(8 * min(len(message), 80)):
            messages = sample()
            flipped = bytearray(message)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            messages[number] = bytes(flipped)
            run_guarded(messages)


@pytest.mark.slow
def test_every_truncation_is_noticed() -> None:
    """A message must have the length that it states. Types and rows of other tables are not examined."""
    for number, message in enumerate(sample()):
        if message[:1] == b"Y" or message == change(STRANGER, None, ROW):
            continue
        for cut in range(len(message)):
            messages = sample()
            messages[number] = message[:cut]
            assert run_guarded(messages) in ("DecodeError", "SchemaChanged"), (number, cut)


@given(st.binary(max_size=80))
def test_descriptions_of_any_bytes(body: bytes) -> None:
    for parse in (pgoutput.relation, pgoutput.truncated):
        with contextlib.suppress(DecodeError):
            parse(b"R" + body)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_messages_of_any_bytes(messages: list[bytes]) -> None:
    run_guarded([begin(200), *RELATIONS, *messages])


def test_null_instead_of_a_message() -> None:
    with pytest.raises(DecodeError, match="null"):
        walker().run(pa.array([b"B", None], pa.binary()))


def test_rows_that_together_exceed_a_batch() -> None:
    one = walked(transaction(*(change(A, None, [str(number), None]) for number in range(70_000))))
    batches = list(delta_batches(one.change, TRACKED, 3, decode_images))
    assert [batch.num_rows for batch in batches] == [65_536, 70_000 - 65_536]
