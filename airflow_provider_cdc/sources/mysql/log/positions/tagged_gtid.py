"""Parser of the tagged GTID event, in the format of the server library ``mysql/serialization``."""

from __future__ import annotations

from airflow_provider_cdc.core.kernels.compile import Bytes, inner, load8, store8
from airflow_provider_cdc.sources.mysql.log.positions.membership import TSID_BYTES


@inner
def _variable(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read a variable-length integer of ``mysql::serialization``. Return the integer and the offset after it. If the
    bytes end too early, the offset is -1.

    The number of consecutive 1 bits at the low end of the first byte is the number of bytes after the first byte. If
    all eight bits are 1, these bytes are a whole 64-bit number.
    """
    if at >= end:
        return 0, -1
    first = load8(data, at)
    more = 0
    while more < 8 and (first >> more) & 1:
        more += 1
    if at + 1 + more > end:
        return 0, -1
    value = 0
    for byte in range(more):
        value |= load8(data, at + 1 + byte) << (8 * byte)
    if more < 7:
        value = value << (7 - more) | first >> (more + 1)
    return value, at + 1 + more


@inner
def tagged_gtid(data: Bytes, at: int, end: int, tsid: Bytes) -> int:
    """Parse the body of a tagged GTID event. Write the source into ``tsid``. Return the transaction's number, or -1 if
    the event is not understood.

    A message consists of the version, the size, the number of the last field that the reader must understand, and the
    fields. The number of a field precedes the field. The first four fields are flags, UUID (one integer per byte),
    number (a signed integer, stored as twice its value) and tag (size and characters). Later fields do not contribute
    to the GTID. The event is rejected if it requires that the reader understands an unknown later field.
    """
    version, at = _variable(data, at, end)
    if at < 0 or version != 1:
        return -1
    _, at = _variable(data, at, end)
    last = 0
    if at >= 0:
        last, at = _variable(data, at, end)
    if at < 0 or last > 11:
        return -1
    number = -1
    for word in range(TSID_BYTES):
        store8(tsid, word, 0)
    for expected in range(4):
        field, at = _variable(data, at, end) if at >= 0 else (0, -1)
        if at < 0 or field != expected:
            return -1
        if field == 1:
            for byte in range(16):
                value, at = _variable(data, at, end) if at >= 0 else (0, -1)
                if at < 0 or value > 255:
                    return -1
                store8(tsid, byte, value)
        elif field == 3:
            size, at = _variable(data, at, end)
            if at < 0 or size < 0 or size > 32 or at + size > end:
                return -1
            store8(tsid, 16, size)
            for byte in range(size):
                store8(tsid, 17 + byte, load8(data, at + byte))
            at += size
        else:
            value, at = _variable(data, at, end)
            if field == 2:
                number = value >> 1 if not value & 1 else -1
    return number if at >= 0 else -1


@inner
def tagged_commit_time(data: Bytes, at: int, end: int) -> int:
    """Return the commit time in the body of a tagged GTID event, in microseconds since 1970, or -1.

    The commit time is field 6. The fields between the tag and field 6 are integers; a signed integer is stored as twice
    its value. Any of these fields may be absent.
    """
    for _ in range(3):
        _, at = _variable(data, at, end) if at >= 0 else (0, -1)
    while at >= 0:
        field, at = _variable(data, at, end)
        if at < 0 or field > 6:
            return -1
        count = 16 if field == 1 else 1
        value = 0
        for _ in range(count):
            value, at = _variable(data, at, end) if at >= 0 else (0, -1)
        if at < 0:
            return -1
        if field == 3:
            at += value
        if field == 6:
            return value
    return -1
