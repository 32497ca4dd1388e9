"""Log files of more than 4 GiB, as one huge transaction creates them. They are sparse, so they use no disk space."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_of
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, check_continuity, log_files
from airflow_provider_cdc.sources.mysql.server.session import session
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import Connection, LogReading, executed, log_end, run

GIB_4 = 1 << 32
_HEADER = struct.Struct("<IBIIIH")
_FIRST_POSITION = 4
_CHECKSUM_BYTES = 4
_IGNORABLE, _GTID = 28, 33
_LARGEST = 1 << 24


def test_the_log_beyond_4_gib_of_a_file(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """The server never splits a transaction over files. Events have the low 32 bits of their end position."""
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
    reading = LogReading(mysql, schema, "a")
    file, ends, _ = full_file(reading, db)
    path = mysql.data / file
    for size in (GIB_4, GIB_4 + 1, GIB_4 + 500, 11 * GIB_4):
        moved_by = size - path.stat().st_size
        with lengthened(path, size) as begin:
            for start, stop, ids in ((begin, None, (0, 1, 2, 3)), (ends[0] + moved_by, ends[2] + moved_by, (1, 2))):
                rows, _ = reading.batches(LogSegment(0, file, start, stop), reading.tracked())
                assert {row["key"] for row in rows} == {key(number) for number in ids}
            with session(reading.settings) as connection:
                files = log_files(connection)
            assert files[file] == size
            # It ends as the server ends its files.
            check_continuity(reading.settings, files, LogPlace(file, begin))


@pytest.mark.long
def test_a_file_of_more_than_4_gib_from_its_beginning(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "SET GLOBAL binlog_checksum = NONE")
    try:
        reading = LogReading(mysql, schema, "a")
        file, ends, sets = full_file(reading, db)
    finally:
        run(db, "SET GLOBAL binlog_checksum = CRC32")
    path = mysql.data / file
    moved_by = GIB_4 + 500 - path.stat().st_size
    with lengthened(path, GIB_4 + 500, filled=True):
        (segment,) = (one for one in reading.segments(LogPlace(file, ends[3] + moved_by)) if one.name == file)
        rows, _ = reading.batches(segment, reading.tracked())
        assert {row["key"] for row in rows} == {key(number) for number in range(4)}
        place = prefix_of(reading.settings, sets[2]).place
        assert (place.file, place.position) == (file, ends[2] + moved_by)


def full_file(reading: LogReading, db: Connection) -> tuple[str, list[int], list[GtidSet]]:
    """Fill a log file with four transactions, and have the server begin another.

    Its name, where each ends in it, and what was executed then.
    """
    run(db, "FLUSH BINARY LOGS")
    ends, sets = [], []
    for number in range(4):
        run(db, f"INSERT INTO a VALUES ({number})")
        ends.append(log_end(reading.server).position)
        sets.append(executed(reading.server))
    file = log_end(reading.server).file
    run(db, "FLUSH BINARY LOGS")
    return file, ends, sets


@contextmanager
def lengthened(path: Path, size: int, *, filled: bool = False) -> Iterator[int]:
    """Move the transactions of a file that the server no longer writes to back until the file has ``size`` bytes.

    Yields where the first of them begins. The file is put back at the end. Before the transactions is a hole, which no
    reader gets through; or with ``filled`` events that say nothing, for a file without checksums.
    """
    original = path.read_bytes()
    events = list(_events(original))
    checksum_bytes = _CHECKSUM_BYTES if events[0][1][-_CHECKSUM_BYTES - 1] else 0
    begin = next(at for at, event in events if event[4] == _GTID)
    moved_by = size - len(original)
    try:
        with path.open("r+b") as file:
            file.truncate(begin)
            if filled:
                assert not checksum_bytes
                for at, length in _fillers(begin, begin + moved_by):
                    file.seek(at)
                    file.write(_HEADER.pack(0, _IGNORABLE, 1, length, (at + length) % 2**32, 0))
            file.seek(begin + moved_by)
            for at, event in events:
                if at >= begin:
                    file.write(_moved(event, at + len(event) + moved_by, checksum_bytes))
        yield begin + moved_by
    finally:
        path.write_bytes(original)


def _events(log: bytes) -> Iterator[tuple[int, bytes]]:
    at = _FIRST_POSITION
    while at < len(log):
        length = _HEADER.unpack_from(log, at)[3]
        yield at, log[at : at + length]
        at += length


def _fillers(at: int, end: int) -> Iterator[tuple[int, int]]:
    """Where events from ``at`` to ``end`` begin, and their lengths."""
    while at < end:
        # None of them may be shorter than its header.
        length = end - at if end - at <= _LARGEST else min(_LARGEST, end - at - _HEADER.size)
        yield at, length
        at += length


def _moved(event: bytes, end: int, checksum_bytes: int) -> bytes:
    when, kind, server, length, _, flags = _HEADER.unpack_from(event)
    moved = _HEADER.pack(when, kind, server, length, end % 2**32, flags) + event[_HEADER.size :]
    if not checksum_bytes:
        return moved
    return moved[:-checksum_bytes] + struct.pack("<I", zlib.crc32(moved[:-checksum_bytes]))
