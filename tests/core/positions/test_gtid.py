"""A GTID set must mean the same transactions to this package and to the server.

The server is the oracle for text and algebra (GTID_SUBTRACT, GTID_SUBSET), for the bytes of a PREVIOUS_GTIDS
event, and for the sets that COM_BINLOG_DUMP_GTID accepts. A plain set of `Gtid` is the second oracle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pymysql.cursors import Cursor

from airflow_provider_cdc.core.positions.gtid import GNO_END, Gtid, GtidSet
from airflow_provider_cdc.errors import PositionError
from harness.mysql_server import MysqlServer
from tests.seeds import examples

# The second and third differ in the last digit only; the order of the list is not the order of the bytes.
UUIDS = [
    "ffffffff-0000-4000-8000-00000000000a",
    "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "3e11fa47-71ca-11e1-9e33-c80aa9429563",
    "00000000-0000-0000-0000-000000000000",
]
TAGS = ["", "a", "a1", "ab", "_", "z_9", "t" * 32]
U = UUIDS[1]


def spellings(uuid: str) -> st.SearchStrategy[str]:
    return st.sampled_from([uuid, uuid.upper(), f"{{{uuid}}}", uuid.replace("-", "")])


spaces = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])
numbers = st.one_of(st.integers(1, 40), st.integers(GNO_END - 5, GNO_END - 1))
intervals = st.one_of(
    st.builds(str, numbers),
    st.builds(
        lambda first, before, after, last: f"{first}{before}-{after}{last}",
        numbers,
        spaces,
        spaces,
        st.one_of(st.just(0), numbers),
    ),
)
tags = st.sampled_from([*TAGS[1:], "A", "Z_9"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Text that the grammar allows, in all spellings."""
    sets = []
    for uuid in draw(st.lists(st.sampled_from(UUIDS), max_size=4)):
        parts = [draw(spellings(uuid)), *draw(st.lists(st.one_of(intervals, intervals, tags), max_size=6))]
        sets.append((draw(spaces) + ":" + draw(spaces)).join(parts))
    return draw(spaces) + (draw(spaces) + draw(st.sampled_from([",", ",\n", ", ,"])) + draw(spaces)).join(sets)


gtids = st.builds(
    Gtid,
    uuid=st.sampled_from([bytes.fromhex(uuid.replace("-", "")) for uuid in UUIDS]),
    tag=st.sampled_from(TAGS),
    gno=st.integers(1, 12),
)
gtid_models = st.frozensets(gtids, max_size=40)
sets = texts().map(GtidSet.parse)


@pytest.fixture(scope="module")
def cursor(mysql: MysqlServer) -> Iterator[Cursor]:
    """One session for all examples: connecting takes longer than asking."""
    with mysql.connect() as connection, connection.cursor() as cursor:
        yield cursor


def on_server(cursor: Cursor, expression: str, *args: object) -> Any:
    cursor.execute(f"SELECT {expression}", args)
    ((value,),) = cursor.fetchall()
    return value.replace("\n", "") if isinstance(value, str) else value


class TestText:
    @given(text=texts())
    def test_every_spelling_is_read_and_printed_as_the_server_does(self, cursor: Cursor, text: str) -> None:
        assert str(GtidSet.parse(text)) == on_server(cursor, "GTID_SUBTRACT(%s, '')", text)

    @pytest.mark.slow
    @settings(max_examples=examples(300))
    @given(text=texts(), data=st.data())
    def test_a_slip_of_the_pen_is_refused_exactly_when_the_server_refuses_it(
        self, cursor: Cursor, text: str, data: st.DataObject
    ) -> None:
        at = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 2))
        slip = text[:at] + data.draw(st.text("0129afgA_-:,;{} \n+é\x00", max_size=3)) + text[at + removed :]
        try:
            ours = str(GtidSet.parse(slip))
        except PositionError as error:
            assume("leading zeros" not in str(error))
            ours = None
        if not slip.isascii():
            # The server looks beyond the end of its table of characters for these, and takes some of them in a tag.
            assert ours is None
            return
        try:
            theirs = on_server(cursor, "GTID_SUBTRACT(%s, '')", slip)
        except pymysql.MySQLError:
            theirs = None
        assert ours == theirs

    @given(gtid_set=sets)
    def test_the_canonical_form_reads_back_as_the_same_set(self, gtid_set: GtidSet) -> None:
        assert GtidSet.parse(str(gtid_set)) == gtid_set
        assert GtidSet.parse(str(gtid_set).replace(",", ",\n").upper()) == gtid_set

    @pytest.mark.parametrize(
        ("text", "at", "what"),
        [
            ("garbage", 0, "UUID"),
            (f"{U}:1,{U[:-1]}:1", 39, "UUID"),
            (f"{U}:", 37, "number or a tag"),
            (f"{U}:1::2", 39, "number or a tag"),
            (f"{U}:0", 37, "from 1 to"),
            (f"{U}:{GNO_END}", 37, "from 1 to"),
            (f"{U}:1-{GNO_END}", 39, "from 1 to"),
            (f"{U}:{'9' * 5000}", 37, "from 1 to"),
            (f"{U}:010", 37, "leading zeros"),
            (f"{U}:1-010", 39, "leading zeros"),
            (f"{U}:{'t' * 33}:1", 37, "at most 32"),
            (f"{U}:1 2", 39, "expected ':', ',' or the end"),
            (f"{U}:1-2-3", 40, "expected ':', ',' or the end"),
            (f"{U}:٣", 37, "number or a tag"),
            (f"{U}:\u212a:1", 37, "number or a tag"),
            (f"{U}:1,\xa0", 39, "UUID"),
        ],
    )
    def test_an_error_names_the_place_and_the_hint(self, text: str, at: int, what: str) -> None:
        with pytest.raises(PositionError) as caught:
            GtidSet.parse(text)
        assert what in caught.value.message
        assert f"at offset {at}," in caught.value.message
        assert repr(text[at : at + 10])[:-1] in caught.value.message
        assert "@@gtid_executed" in caught.value.hint
        assert len(str(caught.value)) < 500

    @pytest.mark.slow
    @given(text=st.text())
    def test_garbage_raises_nothing_but_a_position_error(self, text: str) -> None:
        with contextlib.suppress(PositionError):
            GtidSet.parse(text)

    def test_the_largest_number_is_held_and_no_larger_one(self) -> None:
        largest = GtidSet.parse(f"{U}:{GNO_END - 1}")
        assert str(largest) == f"{U}:9223372036854775806"
        assert [intervals for _, _, intervals in largest.items()] == [((GNO_END - 1, GNO_END),)]
        assert len(GtidSet.parse(f"{U}:1-{GNO_END - 1}")) == GNO_END - 1


class TestAlgebra:
    @pytest.mark.slow
    @given(one=texts(), other=texts())
    def test_it_is_the_servers(self, cursor: Cursor, one: str, other: str) -> None:
        a, b = GtidSet.parse(one), GtidSet.parse(other)
        assert str(a - b) == on_server(cursor, "GTID_SUBTRACT(%s, %s)", one, other)
        assert str(a | b) == on_server(cursor, "GTID_SUBTRACT(CONCAT(%s, ',', %s), '')", one, other)
        assert str(a & b) == on_server(cursor, "GTID_SUBTRACT(%s, GTID_SUBTRACT(%s, %s))", one, one, other)
        assert (a <= b) == on_server(cursor, "GTID_SUBSET(%s, %s)", one, other)
        assert (a >= b) == on_server(cursor, "GTID_SUBSET(%s, %s)", other, one)
        assert a - b <= a <= a | b

    @given(one=gtid_models, other=gtid_models, probe=gtids)
    def test_it_is_that_of_plain_sets_of_transactions(
        self, one: frozenset[Gtid], other: frozenset[Gtid], probe: Gtid
    ) -> None:
        a, b = GtidSet.of(one), GtidSet.of(other)
        assert a | b == GtidSet.of(one | other)
        assert a & b == GtidSet.of(one & other)
        assert a - b == GtidSet.of(one - other)
        assert (a <= b) == (one <= other)
        assert (a == b) == (one == other)
        assert (probe in a) == (probe in one)
        assert a.contains(str(probe).split(":")[0].upper(), probe.tag.upper(), probe.gno) == (probe in one)
        assert len(a) == len(one)
        assert bool(a) == bool(one)

    @pytest.mark.slow
    @given(one=sets, other=sets)
    def test_equal_sets_have_one_representation(self, one: GtidSet, other: GtidSet) -> None:
        same = (one - other) | (one & other)
        assert same == one
        assert hash(same) == hash(one)
        assert str(same) == str(one)

    def test_a_gap_is_never_widened(self) -> None:
        gap = GtidSet.parse(f"{U}:1-3:5-7")
        assert not gap.contains(U, "", 4)
        assert not GtidSet.parse(f"{U}:1-7") <= gap
        assert str(gap | GtidSet.parse(f"{U}:9")) == f"{U}:1-3:5-7:9"
        assert str(gap | GtidSet.parse(f"{U}:4")) == f"{U}:1-7"

    def test_a_tag_is_a_history_of_its_own(self) -> None:
        untagged, tagged = GtidSet.parse(f"{U}:1-5"), GtidSet.parse(f"{U}:a:1-5")
        assert not untagged & tagged
        assert not tagged.contains(U, "", 3)
        assert tagged.contains(U, "a", 3)
        assert str(tagged | untagged) == f"{U}:1-5:a:1-5"

    @pytest.mark.slow
    def test_tens_of_thousands_of_intervals_take_no_time(self) -> None:
        # Linear work takes well under a second here; quadratic work takes many minutes.
        rng = random.Random(1)
        starts = rng.sample(range(1, 400_000, 4), 60_000)
        text = f"{U}:" + ":".join(f"{start}-{start + 1}" for start in starts)
        began = time.process_time()
        a = GtidSet.parse(text)
        b = GtidSet.parse(f"{U}:" + ":".join(str(start) for start in range(1, 400_000, 6)))
        assert (a - b) | (a & b) == a
        assert a <= a | b
        assert GtidSet.decode(a.encode()) == GtidSet.parse(str(a)) == a
        assert sum(a.contains(U, "", gno) for gno in range(50_000)) == len(a & GtidSet.parse(f"{U}:1-49999"))
        assert time.process_time() - began < 20

    def test_thousands_of_intervals_agree_with_the_server(self, cursor: Cursor) -> None:
        rng = random.Random(2)
        one, other = (
            ",".join(
                f"{uuid}:{tag}:" + ":".join(f"{n}-{n + rng.randrange(9)}" for n in rng.sample(range(1, 20_000), 800))
                for uuid in UUIDS
                for tag in ("x", "y")
            )
            for _ in range(2)
        )
        a, b = GtidSet.parse(one), GtidSet.parse(other)
        assert sum(len(ranges) for _, _, ranges in (a - b).items()) > 3000
        assert str(a - b) == on_server(cursor, "GTID_SUBTRACT(%s, %s)", one, other)


class TestValue:
    @given(gtid_set=sets)
    def test_it_survives_pickling(self, gtid_set: GtidSet) -> None:
        assert pickle.loads(pickle.dumps(gtid_set)) == gtid_set

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            GtidSet()._entries = ()  # type: ignore[misc]

    @given(gtid_set=sets)
    def test_it_contains_the_transactions_of_its_intervals(self, gtid_set: GtidSet) -> None:
        for uuid, tag, ranges in gtid_set.items():
            for start, end in ranges:
                assert gtid_set.contains(uuid, tag, start)
                assert gtid_set.contains(uuid, tag, end - 1)
                assert not gtid_set.contains(uuid, tag, start - 1)
                assert not gtid_set.contains(uuid, tag, end)

    @pytest.mark.parametrize(
        ("uuid", "tag", "gno"),
        [
            (b"short", "", 1),
            (U, "", 1),
            (bytes(16), "A", 1),
            (bytes(16), "a-b", 1),
            (bytes(16), "t" * 33, 1),
            (bytes(16), "\u212a", 1),
            (bytes(16), "", 0),
            (bytes(16), "", GNO_END),
        ],
    )
    def test_a_gtid_that_no_server_assigns_is_refused(self, uuid: Any, tag: str, gno: int) -> None:
        with pytest.raises(PositionError, match="Hint"):
            Gtid(uuid, tag, gno)

    @pytest.mark.parametrize("uuid", ["", "nonsense", b"short", U.encode()])
    def test_asking_for_no_uuid_is_an_error_and_not_an_absence(self, uuid: str | bytes) -> None:
        with pytest.raises(PositionError, match="Hint"):
            GtidSet.parse(f"{U}:1").contains(uuid, "", 1)


class TestBytes:
    @given(gtid_set=sets)
    def test_encoding_and_back_is_the_same_set(self, gtid_set: GtidSet) -> None:
        assert GtidSet.decode(gtid_set.encode()) == gtid_set

    def test_a_set_without_tags_is_encoded_as_servers_before_tags_read_it(self) -> None:
        uuid = bytes.fromhex(U.replace("-", ""))
        assert GtidSet.parse(f"{U}:1-3:7").encode() == struct.pack("<Q16s5Q", 1, uuid, 2, 1, 4, 7, 8)
        assert GtidSet().encode() == bytes(8)

    @given(data=st.binary(max_size=200))
    def test_garbage_raises_nothing_but_a_position_error(self, data: bytes) -> None:
        with contextlib.suppress(PositionError):
            GtidSet.decode(data)

    @pytest.mark.slow
    @settings(max_examples=examples(300))
    @given(gtid_set=sets, data=st.data())
    def test_a_flipped_byte_gives_a_valid_set_or_a_position_error(self, gtid_set: GtidSet, data: st.DataObject) -> None:
        damaged = bytearray(gtid_set.encode())
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        try:
            decoded = GtidSet.decode(bytes(damaged))
        except PositionError:
            return
        assert GtidSet.parse(str(decoded)) == decoded

    @given(gtid_set=sets)
    def test_no_prefix_and_no_longer_data_is_accepted(self, gtid_set: GtidSet) -> None:
        data = gtid_set.encode()
        for bad in (*(data[:size] for size in range(len(data))), data + b"\x00" * 4):
            with pytest.raises(PositionError, match="offset"):
                GtidSet.decode(bad)

    @pytest.mark.parametrize(
        ("data", "what"),
        [
            (struct.pack("<Q", 2 << 56 | 2), "no known format"),
            (struct.pack("<Q", 1 << 56), "no known format"),
            (struct.pack("<Q", 2**56 - 1), "ends early"),
            (struct.pack("<Q16sQ", 1, bytes(16), 2**60), "do not fit"),
            (struct.pack("<Q16s3Q", 1, bytes(16), 1, 0, 5), "not sorted"),
            (struct.pack("<Q16s3Q", 1, bytes(16), 1, 5, 5), "not sorted"),
            (struct.pack("<Q16s3Q", 1, bytes(16), 1, 1, 2**63), "not sorted"),
            (struct.pack("<Q16s5Q", 1, bytes(16), 2, 1, 5, 5, 6), "not sorted"),
            (struct.pack("<Q16s3Q16s3Q", 2, bytes(16), 1, 1, 2, bytes(16), 1, 2, 3), "came before"),
            (struct.pack("<Q16sB3Q", 1 << 56 | 1 << 8 | 1, bytes(16), 1, 1, 1, 2), "expected a tag"),
            (struct.pack("<Q16sB1s3Q", 1 << 56 | 1 << 8 | 1, bytes(16), 2, b"A", 1, 1, 2), "expected a tag"),
        ],
        ids=lambda value: value if isinstance(value, str) else value[:8].hex(),
    )
    def test_what_no_server_writes_is_refused(self, data: bytes, what: str) -> None:
        with pytest.raises(PositionError) as caught:
            GtidSet.decode(data)
        assert what in caught.value.message
        assert "mysqlbinlog" in caught.value.hint

    def test_previous_gtids_of_a_real_log_decode_to_the_servers_text_and_encode_to_its_bytes(
        self, cursor: Cursor
    ) -> None:
        commit(cursor, "AUTOMATIC")
        cursor.execute("FLUSH BINARY LOGS")
        for gtid_next in ("AUTOMATIC:abc", f"AUTOMATIC:{'t' * 32}", "AUTOMATIC:z_9", "AUTOMATIC:abc"):
            commit(cursor, gtid_next)
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        *_, before, last = [row[0] for row in cursor.fetchall()]
        for name in (before, last):
            text, body = previous_gtids(cursor, name)
            assert str(GtidSet.decode(body)) == text
            assert GtidSet.parse(text).encode() == body
        assert {"", "abc", "t" * 32, "z_9"} <= {tag for _, tag, _ in GtidSet.decode(body).items()}

    def test_the_server_sends_exactly_the_transactions_that_an_encoded_set_lacks(
        self, mysql: MysqlServer, cursor: Cursor
    ) -> None:
        before = executed(cursor)
        for gtid_next in ("AUTOMATIC", "AUTOMATIC:abc", "AUTOMATIC", "AUTOMATIC:z_9", "AUTOMATIC:abc"):
            commit(cursor, gtid_next)
        now = executed(cursor)
        new = [
            Gtid(uuid, tag, gno)
            for uuid, tag, ranges in (now - before).items()
            for start, end in ranges
            for gno in range(start, end)
        ]
        assert len(new) == 5
        for missing in new:
            assert dumped(mysql, now - GtidSet.of([missing])) == [missing.gno if not missing.tag else "tagged"]
        # Without any tag in it the set travels in the untagged format.
        tagged = GtidSet.parse(",".join(f"{uuid.hex()}:{tag}:1-{GNO_END - 1}" for uuid, tag, _ in now.items() if tag))
        assert dumped(mysql, now - tagged) == ["tagged"] * len(now & tagged)


def commit(cursor: Cursor, gtid_next: str) -> None:
    """Commit one transaction that leaves nothing but its GTID."""
    cursor.execute("SET gtid_next = %s", (gtid_next,))
    cursor.execute("DROP DATABASE IF EXISTS no_such_database")
    cursor.execute("SET gtid_next = 'AUTOMATIC'")


def executed(cursor: Cursor) -> GtidSet:
    return GtidSet.parse(on_server(cursor, "@@GLOBAL.gtid_executed"))


def previous_gtids(cursor: Cursor, log: str) -> tuple[str, bytes]:
    """Return the text that the server shows and the event body that its log file holds."""
    cursor.execute(f"SHOW BINLOG EVENTS IN '{log}'")
    row = next(row for row in cursor.fetchall() if row[2] == "Previous_gtids")
    folder = on_server(cursor, "@@log_bin_basename").rpartition("/")[0]
    file = on_server(cursor, "LOAD_FILE(%s)", f"{folder}/{log}")
    start, end = row[1], row[4]
    # An event is a header of 19 bytes, a body, and a checksum of 4.
    return row[5].replace("\n", ""), file[start + 19 : end - 4]


def dumped(mysql: MysqlServer, known: GtidSet) -> list[int | str]:
    """Ask the server for all but `known`; return the number of each GTID event that it sends, or "tagged"."""
    gtid_event, gtid_tagged_event = 33, 42
    non_block, through_gtid = 1, 4
    connection: Any = mysql.connect()
    connection.query("SET @source_binlog_checksum = @@GLOBAL.binlog_checksum")
    encoded = known.encode()
    command = struct.pack("<HIIQI", non_block | through_gtid, 0, 0, 4, len(encoded)) + encoded
    connection._execute_command(0x1E, command)
    sent: list[int | str] = []
    while not (packet := connection._read_packet()).is_eof_packet():
        event = packet.get_all_data()[1:]
        if event[4] == gtid_event:
            sent += struct.unpack_from("<Q", event, 19 + 1 + 16)
        elif event[4] == gtid_tagged_event:
            sent.append("tagged")
    connection.close()
    return sent
