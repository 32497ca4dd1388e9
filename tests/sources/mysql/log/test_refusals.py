"""Log events that break an assumption of the proof stop the run, with an error that has the place and a hint."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest

from airflow_provider_cdc.errors import CdcError, DecodeError, ImageNotWhole, LogGone, SchemaChanged, UnknownEvent
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from airflow_provider_cdc.sources.mysql.server import log_protocol
from harness.mysql_server import MysqlServer
from tests.sources.mysql.log.reading import Connection, LogReading, executed, log_end, run


@pytest.fixture
def db(mysql: MysqlServer, schema: str) -> Iterator[Connection]:
    with mysql.connect(database=schema) as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 10), (2, 20), (3, 30)")
        run(connection, "CREATE TABLE k (id INT)", "CREATE TABLE other (id INT PRIMARY KEY, v INT)")
        yield connection


def refusal(reading: LogReading, kind: type[CdcError]) -> CdcError:
    with pytest.raises(kind) as raised:
        reading.read()
    error = raised.value
    assert "binlog.0" in error.where
    assert error.hint
    return error


PARTITIONED = (
    "ALTER TABLE a PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2), PARTITION q VALUES LESS THAN MAXVALUE)"
)


@pytest.mark.parametrize(
    ("statements", "kind"),
    [
        (["ALTER TABLE a ADD w INT"], "ALTER TABLE"),
        (["ALTER TABLE a ADD w INT, ALGORITHM=INSTANT"], "ALTER TABLE"),
        (["ALTER TABLE `a` RENAME TO b"], "ALTER TABLE"),
        (["ALTER TABLE a FORCE, CONVERT TO CHARACTER SET latin1"], "ALTER TABLE"),
        (["ALTER TABLE a DISCARD TABLESPACE"], "ALTER TABLE"),
        ([PARTITIONED], "ALTER TABLE"),
        (["CREATE INDEX i ON a ((v + 1))"], "CREATE INDEX"),
        (["ALTER TABLE a DROP PRIMARY KEY"], "ALTER TABLE"),
        (["DROP TABLE a"], "DROP TABLE"),
        (["DROP TABLE IF EXISTS other, a"], "DROP TABLE"),
        (["/* tidy */ TRUNCATE a"], "TRUNCATE TABLE"),
        (["TRUNCATE TABLE k"], "TRUNCATE TABLE"),
        (["RENAME TABLE a TO b, other TO a"], "RENAME TABLE"),
        (["RENAME TABLE a TO b"], "RENAME TABLE"),
        (["/*!80000 ALTER TABLE a ADD w INT */"], "ALTER TABLE"),
        (["SET sql_mode = 'ANSI_QUOTES'", 'ALTER TABLE "a" ADD w INT'], "ALTER TABLE"),
        (["SET NAMES latin1", "ALTER TABLE a ADD `größe` INT"], "ALTER TABLE"),
        (["USE mysql", "ALTER TABLE {schema}.a ADD w INT"], "ALTER TABLE"),
        (["DROP TABLE a", "CREATE TABLE a SELECT 1 AS id, 2 AS v"], "DROP TABLE"),
        (["DROP DATABASE {schema}", "CREATE DATABASE {schema}"], "DROP DATABASE"),
        (["LOCK TABLES a WRITE", "ALTER TABLE a ADD w INT", "UNLOCK TABLES"], "ALTER TABLE"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1][:40],
)
def test_ddl_on_a_copied_table(
    mysql: MysqlServer, schema: str, db: Connection, statements: list[str], kind: str
) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    run(db, "UPDATE a SET v = v + 1", *(statement.format(schema=schema) for statement in statements))
    error = refusal(reading, SchemaChanged)
    assert kind in error.message
    assert f"{schema}." in error.where
    assert mysql.query("SELECT @@server_uuid")[0][0] in error.where


def test_partition_operations(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, PARTITIONED, "CREATE TABLE spare LIKE a", "ALTER TABLE spare REMOVE PARTITIONING")
    for operation in (
        "ALTER TABLE a TRUNCATE PARTITION p",
        "ALTER TABLE a EXCHANGE PARTITION p WITH TABLE spare",
        "ALTER TABLE a DROP PARTITION p",
    ):
        reading = LogReading(mysql, schema, "a")
        run(db, operation)
        refusal(reading, SchemaChanged)


def test_a_copied_table_that_is_exchanged_for_a_partition(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE p LIKE a", PARTITIONED.replace("TABLE a", "TABLE p"), "DELETE FROM a WHERE id > 1")
    reading = LogReading(mysql, schema, "a")
    run(db, "ALTER TABLE p EXCHANGE PARTITION p WITH TABLE a")
    assert reading.tables[0].name.name in refusal(reading, SchemaChanged).where


def test_a_table_made_by_another_statement_under_a_copied_name(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """Schemas are read after the initial position is fixed: a table that is created in between had no rows then."""
    reading = LogReading(mysql, schema, "a")
    reading.initial = executed(mysql)
    run(db, "SET SESSION sql_log_bin = 0", "DROP TABLE a", "SET SESSION sql_log_bin = 1")
    run(db, "CREATE TABLE IF NOT EXISTS a (id INT PRIMARY KEY, v INT)")
    refusal(reading, SchemaChanged)


def test_rows_of_another_shape_without_ddl_in_the_log(mysql: MysqlServer, schema: str, db: Connection) -> None:
    reading = LogReading(mysql, schema, "a")
    run(db, "SET sql_log_bin = 0", "ALTER TABLE a MODIFY v BIGINT", "SET sql_log_bin = 1", "UPDATE a SET v = 1")
    assert f"{schema}.a" in refusal(reading, SchemaChanged).where


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
@pytest.mark.parametrize("change", ["UPDATE b SET v = 5", "DELETE FROM b", "INSERT INTO b (id) VALUES (9)"])
def test_a_session_with_other_row_images(
    mysql: MysqlServer, schema: str, db: Connection, image: str, change: str
) -> None:
    run(db, "CREATE TABLE b (id INT PRIMARY KEY, v INT, t TEXT)", "INSERT INTO b VALUES (1, 1, 'x')")
    reading = LogReading(mysql, schema, "b")
    run(db, f"SET binlog_row_image = {image}", change)
    assert "binlog_row_image" in refusal(reading, ImageNotWhole).hint


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE a SET v = 1",
        "INSERT INTO other VALUES (1, 1)",
        "DELETE FROM other",
        "INSERT INTO other SELECT id, @x FROM a",
        "INSERT INTO k VALUES (RAND())",
    ],
)
def test_a_session_that_logs_statements(mysql: MysqlServer, schema: str, db: Connection, statement: str) -> None:
    """Also on a table that is not copied: a trigger there may change one that is."""
    reading = LogReading(mysql, schema, "a", "k")
    run(db, "SET binlog_format = STATEMENT, @x = 5", statement)
    assert "binlog_format" in refusal(reading, ImageNotWhole).hint


def test_partial_json_in_a_keyless_table(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """The row after is logged as a difference, so it cannot be counted."""
    run(
        db,
        "CREATE TABLE j (d JSON, v INT)",
        """INSERT INTO j VALUES (CONCAT('{"a": 1, "z": "', REPEAT('z', 300), '"}'), 1)""",
    )
    reading = LogReading(mysql, schema, "j")
    run(db, "SET binlog_row_value_options = PARTIAL_JSON", "UPDATE j SET d = JSON_SET(d, '$.a', 2)")
    refused = refusal(reading, ImageNotWhole)
    assert "binlog_row_value_options=PARTIAL_JSON" in refused.message
    assert "leave binlog_row_value_options empty" in refused.hint


def test_partial_json_without_whole_images(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE j (id INT PRIMARY KEY, d JSON, v INT)")
    run(db, """INSERT INTO j VALUES (1, CONCAT('{"a": 1, "z": "', REPEAT('z', 300), '"}'), 1)""")
    reading = LogReading(mysql, schema, "j")
    run(
        db,
        "SET binlog_row_value_options = PARTIAL_JSON, binlog_row_image = MINIMAL",
        "UPDATE j SET d = JSON_SET(d, '$.a', 2)",
    )
    refusal(reading, ImageNotWhole)


def test_transactions_without_gtids(mysql_factory: Any) -> None:
    server = mysql_factory({"gtid_mode": "OFF", "enforce_gtid_consistency": "ON"})
    server.query("CREATE DATABASE s")
    with server.connect(database="s") as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY)")
        reading = LogReading(server, "s", "a")
        run(connection, "INSERT INTO a VALUES (1)")
    assert "gtid_mode" in refusal(reading, UnknownEvent).hint
    # Events beyond 4 GiB of a file are requested by a command that needs GTIDs.
    with pytest.raises(LogGone) as raised:
        reading.batches(LogSegment(0, log_end(server).file, 1 << 32, None), reading.tracked())
    assert "gtid_mode" in raised.value.hint


# Events that a server writes only when something is wrong, or no longer writes, are inserted into a file's bytes.


@pytest.fixture
def recorded(mysql: MysqlServer, schema: str, db: Connection) -> tuple[LogReading, list[bytes], str]:
    """A reading, and the events of a file with one row change on a copied table."""
    run(db, "FLUSH BINARY LOGS")
    reading = LogReading(mysql, schema, "a", "k")
    run(db, "BEGIN", "UPDATE a SET v = 11 WHERE id = 1", "INSERT INTO k VALUES (4)", "COMMIT")
    file = log_end(mysql).file
    return reading, split((mysql.directory / "data" / file).read_bytes()), file


def split(log: bytes) -> list[bytes]:
    found, at = [], 4
    while at < len(log):
        size = struct.unpack_from("<I", log, at + 9)[0]
        found.append(log[at : at + size])
        at += size
    return found


def made(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body) + 4, 0, flags) + body + b"\0\0\0\0"


def joined(parts: list[bytes]) -> bytes:
    """A file of these events, with their positions and checksums corrected."""
    log = b""
    for part in parts:
        event = part[:13] + struct.pack("<I", 4 + len(log) + len(part)) + part[17:-4]
        # The server excludes the flag for a file in use from the first event's checksum.
        event = event[:17] + bytes([event[17] & ~1]) + event[18:]
        log += event + struct.pack("<I", zlib.crc32(event))
    return log


def walk(
    reading: LogReading,
    log: bytes,
    file: str,
    step: int = 1 << 20,
    tracked: Sequence[TrackedTable] | None = None,
) -> LogWalker:
    walker = LogWalker(
        file,
        4,
        4 + len(log),
        reading.initial,
        reading.tracked() if tracked is None else tracked,
        SegmentSummary(LogSegment(0, file, 4, None)),
    )
    data = np.frombuffer(log, np.uint8).copy()
    for end in range(step, len(log) + step, step):
        if walker.run(data, min(end, len(log))):
            return walker
    raise AssertionError("the end was not reached")


Recorded: TypeAlias = "tuple[LogReading, list[bytes], str]"


def test_what_is_recorded_can_be_walked_in_pieces_of_any_size(recorded: Recorded) -> None:
    reading, parts, file = recorded
    for step in (1, 7, 64, 1 << 20):
        walker = walk(reading, joined(parts), file, step)
        assert len(walker.change.records()[0]) == 2


@pytest.mark.parametrize("kind", [0, 1, 7, 10, 18, 34, 26, 43, 99, 255])
@pytest.mark.parametrize("flags", [0, 0x80])
def test_unknown_events(recorded: Recorded, kind: int, flags: int) -> None:
    """Also those that the server marks as ignorable: what is unknown is never skipped."""
    reading, parts, file = recorded
    with pytest.raises(UnknownEvent):
        walk(reading, joined([*parts[:2], made(kind, b"12345678", flags), *parts[2:]]), file)


@pytest.mark.parametrize("kind", [27, 28, 29, 36, 37, 41, 5, 9, 11, 13, 14, 17])
def test_events_that_hold_no_rows(recorded: Recorded, kind: int) -> None:
    reading, parts, file = recorded
    at = len(parts) - 1
    event = made(kind, b"12345678")
    if kind in (27, 41):  # heartbeats are in no file: they take no room in it
        log = joined(parts[:at])
        data = log + event[:-4] + struct.pack("<I", zlib.crc32(event[:-4])) + joined(parts)[len(log) :]
        walker = LogWalker(
            file,
            4,
            4 + len(data) - len(event),
            reading.initial,
            reading.tracked(),
            SegmentSummary(LogSegment(0, file, 4, None)),
        )
        assert walker.run(np.frombuffer(data, np.uint8).copy(), len(data))
    else:
        walker = walk(reading, joined([*parts[:at], event, *parts[at:]]), file)
    assert len(walker.change.records()[0]) == 2


def test_row_events_of_version_1(recorded: Recorded) -> None:
    """MySQL 5.6 wrote them: the same without the extra block."""
    reading, parts, file = recorded
    old = [
        part[:4] + bytes([part[4] - 7]) + part[5:9] + struct.pack("<I", len(part) - 2) + part[13:27] + part[29:]
        if part[4] in (30, 31, 32)
        else part
        for part in parts
    ]
    assert old != parts
    assert len(walk(reading, joined(old), file).change.records()[0]) == 2


@pytest.mark.parametrize("missing", range(2, 9))
def test_an_event_that_is_missing(recorded: Recorded, missing: int) -> None:
    """A transaction must have its GTID, BEGIN, table map and end. Missing rows alone could not be detected."""
    reading, parts, file = recorded
    kind = parts[missing][4]
    log = joined(parts[:missing] + parts[missing + 1 :])
    if kind in (log_protocol.WRITE_ROWS, log_protocol.UPDATE_ROWS):
        assert len(walk(reading, log, file).change.records()[0]) == 1
    else:
        with pytest.raises((UnknownEvent, DecodeError)):
            walk(reading, log, file)


def query(text: bytes, schema: bytes = b"") -> bytes:
    return made(log_protocol.QUERY, struct.pack("<IIBHH", 1, 0, len(schema), 0, 0) + schema + b"\0" + text)


@pytest.mark.parametrize("text", [b"ROLLBACK", b"ROLLBACK TO `s`"])
def test_a_rollback_after_rows(recorded: Recorded, text: bytes) -> None:
    """A server logs it when part of the transaction could not be undone. The log does not show which part."""
    reading, parts, file = recorded
    with pytest.raises(UnknownEvent, match="ROLLBACK"):
        walk(reading, joined([*parts[:-1], query(text)]), file)


def test_a_rollback_before_rows(recorded: Recorded) -> None:
    reading, parts, file = recorded
    assert len(walk(reading, joined([*parts[:4], query(b"ROLLBACK")]), file).change.records()[0]) == 0


def test_a_statement_that_is_not_understood(recorded: Recorded) -> None:
    reading, parts, file = recorded
    with pytest.raises(UnknownEvent, match="FROBNICATE"):
        walk(reading, joined([*parts[:3], query(b"FROBNICATE TABLE x", b"s")]), file)


def test_a_server_of_another_log_format(recorded: Recorded) -> None:
    reading, parts, file = recorded
    for at in (19, 19 + 56, 19 + 57 + log_protocol.TABLE_MAP - 1, 19 + 57 + log_protocol.WRITE_ROWS - 1):
        first = bytearray(parts[0])
        first[at] ^= 0x08
        with pytest.raises(UnknownEvent):
            walk(reading, joined([bytes(first), *parts[1:]]), file)


def test_the_segment_must_end_between_transactions(recorded: Recorded) -> None:
    reading, parts, file = recorded
    for count in range(3, len(parts)):
        with pytest.raises(DecodeError, match="within a transaction"):
            walk(reading, joined(parts[:count]), file)


def test_an_end_that_is_within_an_event(recorded: Recorded) -> None:
    reading, parts, file = recorded
    log = joined(parts)
    walker = LogWalker(
        file,
        4,
        len(log) - 3,
        reading.initial,
        reading.tracked(),
        SegmentSummary(LogSegment(0, file, 4, None)),
    )
    with pytest.raises(DecodeError):
        walker.run(np.frombuffer(log, np.uint8).copy(), len(log))


def test_every_flipped_bit_is_noticed(recorded: Recorded) -> None:
    reading, parts, file = recorded
    log = joined(parts)
    for at in range(0, len(log), 13):
        data = bytearray(log)
        data[at] ^= 1 << at % 8
        with pytest.raises((DecodeError, UnknownEvent, AssertionError)):
            walk(reading, bytes(data), file)


def test_a_look_at_the_log_leaves_damaged_rows_to_whoever_reads_them(recorded: Recorded) -> None:
    """And notices all other damage."""
    reading, parts, file = recorded
    log = joined(parts)
    looked_at = [replace(one, looked_at=True) for one in reading.tracked()]
    start = unnoticed = 0
    for part in parts:
        for at in range(start, start + len(part), 5):
            data = bytearray(log)
            data[at] ^= 1 << at % 8
            with suppress(DecodeError, UnknownEvent, ImageNotWhole, SchemaChanged, AssertionError):
                walk(reading, bytes(data), file, tracked=looked_at)
                assert_rows(part)
                unnoticed += 1
        start += len(part)
    assert unnoticed


def assert_rows(event: bytes) -> None:
    """An `AssertionError` would show that the end was not reached."""
    if event[log_protocol.KIND_AT] not in (log_protocol.WRITE_ROWS, log_protocol.UPDATE_ROWS, log_protocol.DELETE_ROWS):
        pytest.fail(f"damage of an event of type {event[log_protocol.KIND_AT]} was not noticed")
