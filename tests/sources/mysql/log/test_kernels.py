"""The log reader's kernels, compared with plain Python, and with malformed bytes."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.kernels import Bytes, Int64s, bytes_of, kernel
from airflow_provider_cdc.core.positions.gtid import Gtid, GtidSet
from airflow_provider_cdc.core.tables.net_change import Change, net, net_counts
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CdcError, DecodeError
from airflow_provider_cdc.sources.api.window import DELTA_SCHEMA, LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.log.delta import delta_batches
from airflow_provider_cdc.sources.mysql.decode.images import decode_images
from airflow_provider_cdc.sources.mysql.log import dump, events
from airflow_provider_cdc.sources.mysql.log import dump as crc
from airflow_provider_cdc.sources.mysql.log.commits import (
    TSID_BYTES,
    find_tsid,
    in_set,
    set_arrays,
    tagged_gtid,
    tsid_bytes,
)
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from tests.seeds import examples, seeds
from tests.sources.guarded import guarded


@kernel
def _crc32(tables: Bytes, data: Bytes, at: int, end: int) -> int:
    return crc.crc32(tables, data, at, end)


@kernel
def _find_tsid(tsids: Bytes, tsid: Bytes, hint: int) -> int:
    return find_tsid(tsids, tsid, hint)


@kernel
def _tagged_gtid(data: Bytes, at: int, end: int, tsid: Bytes) -> int:
    return tagged_gtid(data, at, end, tsid)


@given(st.binary(max_size=200) | st.builds(Random.randbytes, st.randoms(), st.integers(0, 3000)), st.integers(0, 20))
def test_checksums_are_those_of_zlib(data: bytes, at: int) -> None:
    at = min(at, len(data))
    assert _crc32(crc.TABLES, np.frombuffer(data, np.uint8).copy(), at, len(data)) == zlib.crc32(data[at:])


UUIDS = [bytes([number] * 16) for number in range(3)]
GTIDS = st.builds(
    Gtid, st.sampled_from(UUIDS), st.sampled_from(["", "a", "a_tag_of_thirty_two_characters__"]), st.integers(1, 40)
)


@given(st.lists(st.lists(GTIDS, max_size=30), min_size=1, max_size=3), st.lists(GTIDS, max_size=30))
def test_membership_is_that_of_the_set(sets: list[list[Gtid]], asked: list[Gtid]) -> None:
    expected = [GtidSet.of(one) for one in sets]
    arrays = set_arrays(expected)
    hint = -1
    for gtid in asked:
        tsid = np.frombuffer(tsid_bytes(gtid.uuid, gtid.tag), np.uint8).copy()
        hint = _find_tsid(arrays.tsids, tsid, hint)
        for which, one in enumerate(expected):
            assert in_set(arrays, which, hint, gtid.gno) == (gtid in one)


def variable(value: int) -> bytes:
    """A variable-length integer of ``mysql::serialization``, encoded as in its readme."""
    for more in range(8):
        if value < 1 << (7 * (more + 1)):
            return (value << (more + 1) | (1 << more) - 1).to_bytes(more + 1, "little")
    return b"\xff" + value.to_bytes(8, "little")


def tagged_event(gtid: Gtid, last: int = 0, version: int = 1) -> bytes:
    fields = b"".join(
        variable(number) + body
        for number, body in (
            (0, variable(1)),
            (1, b"".join(variable(byte) for byte in gtid.uuid)),
            (2, variable(gtid.gno << 1)),
            (3, variable(len(gtid.tag)) + gtid.tag.encode()),
            (4, variable(12345)),
        )
    )
    return variable(version) + variable(len(fields) + 3) + variable(last) + fields


@given(
    st.binary(min_size=16, max_size=16),
    st.from_regex("[a-z_][a-z0-9_]{0,31}", fullmatch=True),
    st.one_of(st.integers(1, 2**63 - 2), st.integers(0, 62).map(lambda bits: 1 << bits)),
)
def test_tagged_gtids(uuid: bytes, tag: str, number: int) -> None:
    gtid = Gtid(uuid, tag, number)
    data = np.frombuffer(b"?" + tagged_event(gtid), np.uint8).copy()
    tsid: Bytes = np.full(TSID_BYTES, 255, np.uint8)
    # The highest bit of a number does not fit the kernel's signed shift; no server comes near it.
    if number < 2**62:
        assert _tagged_gtid(data, 1, len(data), tsid) == number
        assert tsid.tobytes() == tsid_bytes(uuid, tag)


def test_a_tagged_gtid_with_what_must_be_understood_is_refused() -> None:
    gtid = Gtid(UUIDS[0], "t", 5)
    tsid: Bytes = np.zeros(TSID_BYTES, np.uint8)
    for body in (tagged_event(gtid, last=12), tagged_event(gtid, version=2)):
        assert _tagged_gtid(np.frombuffer(body, np.uint8).copy(), 0, len(body), tsid) == -1


@given(st.binary(max_size=80))
def test_tagged_gtids_never_read_beyond_the_event(body: bytes) -> None:
    with guarded(body) as memory:
        _tagged_gtid(bytes_of(memory), 0, len(body), np.zeros(TSID_BYTES, np.uint8))
    whole = tagged_event(Gtid(UUIDS[1], "some_tag", 77))
    # What comes behind the tag is not needed.
    cut = whole[: len(body) % (len(whole) - len(variable(4) + variable(12345)))]
    with guarded(cut) as memory:
        assert _tagged_gtid(bytes_of(memory), 0, len(cut), np.zeros(TSID_BYTES, np.uint8)) == -1


def packets(payloads: Sequence[bytes], sequence: int = 1) -> bytes:
    out = []
    for payload in payloads:
        rest = b"\0" + payload
        while True:
            piece, rest = rest[: 2**24 - 1], rest[2**24 - 1 :]
            out.append(struct.pack("<I", len(piece) | sequence % 256 << 24) + piece)
            sequence += 1
            if len(piece) < 2**24 - 1:
                break
    return b"".join(out)


def unpack_all(stream: bytes, cuts: Callable[[int], int]) -> tuple[int, bytes]:
    raw = np.empty(len(stream) + 1, np.uint8)
    data = np.empty(len(stream) + 1, np.uint8)
    state: Int64s = np.zeros(8, np.int64)
    state[dump.SEQUENCE] = 1
    at = 0
    while True:
        code = dump.unpack(raw, data, state)
        if code != dump.MORE or at == len(stream):
            return code, data[: state[dump.DATA_END]].tobytes()
        size = min(cuts(at), len(stream) - at)
        raw[at : at + size] = np.frombuffer(stream, np.uint8, size, at)
        at += size
        state[dump.RAW_END] = at


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=300), st.integers(1, 60))
@settings(max_examples=examples(50))
def test_packets_in_pieces_of_any_size(payloads: list[bytes], step: int) -> None:
    stream = packets(payloads)
    assert unpack_all(stream, lambda at: step) == (dump.MORE, b"".join(payloads))
    end = struct.pack("<I", 5 | (len(payloads) + 1) % 256 << 24) + b"\xfe\0\0\2\0"
    assert unpack_all(stream + end, lambda at: step) == (dump.END, b"".join(payloads))


@pytest.mark.parametrize("size", [2**24 - 3, 2**24 - 2, 2**24 - 1, 2**25 - 3, 2**25 + 5])
def test_packets_of_sixteen_megabytes(size: int) -> None:
    payloads = [b"a" * 10, bytes(1) * size, b"b" * 3]
    assert unpack_all(packets(payloads), lambda at: 1 << 20) == (dump.MORE, b"".join(payloads))


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (packets([b"x"]) + packets([b"y"], sequence=3), dump.BROKEN),
        (struct.pack("<I", 0 | 1 << 24) + b"\0", dump.BROKEN),
        (struct.pack("<I", 2 | 1 << 24) + b"\x07\0", dump.BROKEN),
        (struct.pack("<I", 4 | 1 << 24) + b"\xff\x15\x04#", dump.ERROR),
    ],
)
def test_packets_out_of_order(stream: bytes, code: int) -> None:
    assert unpack_all(stream, lambda at: 3)[0] == code


# A small log, made here, with rows of every kind; it can be spoilt at will because its checksums are made after.

KEYED = Table(
    TableName("s", "a"), (Column("id", "int", False), Column("v", "varchar(20)", True, {"charset": "utf8mb4"})), ("id",)
)
KEYLESS = Table(TableName("s", "k"), (Column("id", "int", True),))
TRACKED = [
    TrackedTable(0, KEYED),
    TrackedTable(1, KEYLESS, GtidSet.parse("00000000-0000-0000-0000-000000000000:1-1000000")),
]
FORWARD = [replace(TRACKED[0], upper=TRACKED[1].upper, forward=True), replace(TRACKED[1], forward=True)]
SOURCE = bytes(16)

Row = tuple[int, bytes | None]
Event = tuple[Row | None, Row | None]


def event(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack("<IBIIIH", 0, kind, 1, 23 + len(body), 0, flags) + body


def format_description() -> bytes:
    lengths = bytearray(42)
    for kind, length in {2: 13, 4: 8, 19: 8, 30: 10, 31: 10, 32: 10, 39: 10}.items():
        lengths[kind - 1] = length
    return event(15, struct.pack("<H50sIB", 4, b"9.7.0", 0, 19) + bytes(lengths) + b"\1")


def gtid_event(number: int) -> bytes:
    return event(33, b"\0" + SOURCE + struct.pack("<q", number) + bytes(17))


def query(text: bytes) -> bytes:
    return event(2, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"s\0" + text)


MAPS = {
    "a": event(19, b"\x01\0\0\0\0\0\1\0\x01s\0\x01a\0\x02\x03\x0f\x02\x50\0\x02"),
    "k": event(19, b"\x02\0\0\0\0\0\1\0\x01s\0\x01k\0\x01\x03\0\x01"),
}


def image(row: Row) -> bytes:
    number, text = row
    if text is None:
        return b"\x02" + struct.pack("<i", number)
    return b"\0" + struct.pack("<i", number) + bytes([len(text)]) + text


def rows(changes: Sequence[Event]) -> list[bytes]:
    out = []
    for before, after in changes:
        kind = 30 if before is None else 32 if after is None else 31
        bitmaps = b"\x02\x03" + (b"\x03" if kind == 31 else b"")
        out.append(
            event(kind, b"\x01\0\0\0\0\0\1\0\x02\0" + bitmaps + b"".join(image(row) for row in (before, after) if row))
        )
    return out


def keyless_rows(changes: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
    out = []
    for before, after in changes:
        kind = 30 if before is None else 32 if after is None else 31
        bitmaps = b"\x01\x01" + (b"\x01" if kind == 31 else b"")
        images = b"".join(b"\0" + struct.pack("<i", row) for row in (before, after) if row is not None)
        out.append(event(kind, b"\x02\0\0\0\0\0\1\0\x02\0" + bitmaps + images))
    return out


def log_of(parts: Sequence[bytes]) -> bytes:
    log = b""
    for part in parts:
        part = part[:13] + struct.pack("<I", 4 + len(log) + len(part) + 4) + part[17:]
        log += part + struct.pack("<I", zlib.crc32(part))
    return log


def net_change_of(
    walker: LogWalker, segment: int = 0, tracked: Sequence[TrackedTable] = TRACKED
) -> list[pa.RecordBatch]:
    return list(delta_batches(walker.change, tracked, segment, decode_images, walker.xa.pending))


def walked(
    log: bytes, step: int, data: Bytes | None = None, tracked: Sequence[TrackedTable] = TRACKED
) -> tuple[LogWalker, bool]:
    summary = SegmentSummary(LogSegment(0, "f", 4, None))
    walker = LogWalker("f", 4, 4 + len(log), GtidSet(), tracked, summary)
    data = np.frombuffer(log, np.uint8).copy() if data is None else data
    for end in range(step, len(log) + step, step):
        if walker.run(data, min(end, len(log))):
            return walker, True
    return walker, False


NUMBERS = st.integers(-3, 3)
ROWS = st.tuples(NUMBERS, st.one_of(st.none(), st.sampled_from([b"", b"x", b"abc" * 5])))
HISTORIES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.one_of(st.none(), ROWS), st.one_of(st.none(), ROWS)), max_size=5),
        st.lists(st.tuples(st.one_of(st.none(), NUMBERS), st.one_of(st.none(), NUMBERS)), max_size=5),
    ),
    max_size=8,
)


@pytest.mark.slow
@given(HISTORIES, st.integers(1, 500))
@settings(max_examples=examples(150))
def test_nets_as_the_specification_says(
    history: list[tuple[list[Event], list[tuple[int | None, int | None]]]], step: int
) -> None:
    """Any events, even ones that no table could produce: a walk does not depend on earlier rows."""
    parts = [format_description()]
    keyed: list[dict[int, Change[Row]]] = []
    keyless: list[tuple[int | None, int | None]] = []
    for number, (changes, counted) in enumerate(history, 1):
        changes = [change for change in changes if change != (None, None)]
        counted = [change for change in counted if change != (None, None)]
        parts += [
            gtid_event(number),
            query(b"BEGIN"),
            MAPS["a"],
            MAPS["k"],
            *rows(changes),
            *keyless_rows(counted),
            event(16, bytes(8)),
        ]
        for before, after in changes:
            if before and after and before[0] == after[0]:
                keyed.append({before[0]: Change(before, after)})
            else:
                keyed += [{before[0]: Change(before, None)}] if before else []
                keyed += [{after[0]: Change(None, after)}] if after else []
        keyless += counted
    walker, ended = walked(log_of(parts), step)
    assert ended
    found = [row for batch in net_change_of(walker) for row in batch.to_pylist()]
    befores = {struct.unpack("<xi", row["key"])[0]: row["before"] for row in found if row["table"] == 0}
    counts = {struct.unpack("<xi", row["before"])[0]: row["count"] for row in found if row["table"] == 1}
    assert befores == {k: image(change.before) if change.before else None for k, change in net(keyed).items()}
    assert counts == net_counts(keyless)
    assert all(batch.schema.equals(DELTA_SCHEMA) for batch in net_change_of(walker))
    assert all(row["after"] is None for row in found)

    walker, _ = walked(log_of(parts), step, tracked=FORWARD)
    found = [row for batch in net_change_of(walker, tracked=FORWARD) for row in batch.to_pylist()]
    both = {struct.unpack("<xi", row["key"])[0]: (row["before"], row["after"]) for row in found if row["table"] == 0}
    assert both == {
        k: tuple(image(row) if row else None for row in (change.before, change.after))
        for k, change in net(keyed).items()
    }
    assert counts == {struct.unpack("<xi", row["before"])[0]: row["count"] for row in found if row["table"] == 1}


def sample() -> list[bytes]:
    some: list[Event] = [((1, b"x"), (1, b"yy")), (None, (2, None)), ((3, b""), None)]
    return [
        format_description(),
        gtid_event(1),
        query(b"BEGIN"),
        MAPS["a"],
        MAPS["k"],
        *rows(some),
        *keyless_rows([(None, 5), (5, 6)]),
        query(b"SAVEPOINT `s`"),
        event(16, bytes(8)),
        event(42, tagged_event(Gtid(SOURCE, "tag", 9))),
        query(b"XA START X'61',X'',1"),
        MAPS["a"],
        *rows(some[:1]),
        query(b"XA END X'61',X'',1"),
        event(38, struct.pack("<BIII", 0, 1, 1, 0) + b"a"),
        gtid_event(2),
        query(b"XA COMMIT X'61',X'',1"),
        gtid_event(3),
        query(b"create view v as select 1"),
        event(4, struct.pack("<Q", 4) + b"g"),
    ]


def test_the_sample_is_sound() -> None:
    log = log_of(sample())
    for step in (1, 3, 1000):
        walker, ended = walked(log, step)
        assert ended
        assert len(walker.change.records()[0]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_spoilt_events_with_good_checksums(seed: int) -> None:
    """Damage that no checksum shows may cause an error or another result, but never a read beyond the bytes."""
    rng = random.Random(seed)
    outcomes: set[object] = set()
    for _ in range(400):
        parts = sample()
        chosen = rng.randrange(1, len(parts))
        spoilt = bytearray(parts[chosen])
        for _ in range(rng.choice((1, 1, 2, 5))):
            spoilt[rng.randrange(len(spoilt))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFE, 0xFF, rng.randrange(256))
            )
        if rng.random() < 0.3:
            del spoilt[rng.randrange(19, len(spoilt) + 1) :]
            spoilt[9:13] = struct.pack("<I", len(spoilt) + 4)
        parts[chosen] = bytes(spoilt)
        log = log_of(parts)
        with guarded(log) as memory:
            try:
                outcomes.add(walked(log, len(log), bytes_of(memory))[1])
            except CdcError as error:
                outcomes.add(type(error).__name__)
    assert {"DecodeError", "UnknownEvent"} <= {str(outcome) for outcome in outcomes}


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_truncated_and_random_bytes(seed: int) -> None:
    rng = random.Random(seed)
    log = log_of(sample())
    for cut in range(0, len(log), 5):
        with guarded(log[:cut]) as memory:
            summary = SegmentSummary(LogSegment(0, "f", 4, None))
            assert not LogWalker("f", 4, 4 + len(log), GtidSet(), TRACKED, summary).run(bytes_of(memory), cut)
    for size in (0, 1, 18, 19, 30, 500):
        noise = rng.randbytes(size)
        with guarded(noise) as memory, contextlib.suppress(DecodeError):
            assert not walked(noise, max(size, 1), bytes_of(memory))[1]


@given(st.binary(max_size=60))
def test_odd_events_of_any_bytes(body: bytes) -> None:
    for parse in (events.format_description, events.table_map, events.query, events.xa_prepare, events.rotate):
        with contextlib.suppress(CdcError):
            parse(body)
    with contextlib.suppress(CdcError):
        events.transaction_payload(body)


@pytest.mark.slow
def test_binary_arrays_come_out_whole() -> None:
    """Rows that do not fit into one batch come in several."""
    changes: list[Event] = [(None, (number, b"v")) for number in range(70_000)]
    walker, _ = walked(
        log_of([format_description(), gtid_event(1), query(b"BEGIN"), MAPS["a"], *rows(changes), event(16, bytes(8))]),
        1 << 16,
    )
    batches = net_change_of(walker, 3)
    assert [batch.num_rows for batch in batches] == [65_536, 70_000 - 65_536]
    assert sorted(pa.Table.from_batches(batches)["order"].to_pylist()) == [
        (3 << 40) + number for number in range(1, 70_001)
    ]
