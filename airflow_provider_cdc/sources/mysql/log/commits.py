"""The kernel that reads only the GTID events of a binary log. They contain the GTID and the commit time of each
transaction.

For the formats, see ``walk.py``. The commit time is the field ``immediate_commit_timestamp``: the time of the commit on
this server, in microseconds since 1970. The field ``original_commit_timestamp`` has the time of the first commit, on
another server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_cdc.core.kernels import Bytes, Int64s, inner, kernel, load8, load16, load32, load64, store8
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.sources.mysql.log.dump import crc32
from airflow_provider_cdc.sources.mysql.server.log_protocol import (
    ANONYMOUS_GTID,
    ARTIFICIAL,
    CHECKSUM_BYTES,
    END_AT,
    FIRST_POSITION,
    FLAGS_AT,
    FORMAT_DESCRIPTION,
    GTID,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    KIND_AT,
    LENGTH_AT,
    LOW_HALF,
    MAX_EVENT_BYTES,
    ROTATE,
    STOP,
    TAGGED_GTID,
)

# Lays out GTID sets as arrays, so that kernels can look up transactions in them.


TSID_BYTES = 56
"""Size in bytes of the array entry for a source of transactions (a TSID). The entry contains the UUID (16 bytes), the
length of the tag (one byte), the tag, and zeros as padding."""

_TAG_AT = 17


class SetArrays(NamedTuple):
    """GTID sets, numbered in the order in which they were given.

    ``tsids``
        ``uint8[TSID_BYTES * n]``, all sources that occur in any of the sets.
    ``ranges``
        ``int64[2 * n * sets]``. For set ``s`` and source ``t``, the entry ``2 * (n * s + t)`` is the index of their
        first bound in ``bounds``. The next entry is the index after their last bound.
    ``bounds``
        ``int64``, in increasing order: the start and the exclusive end of each interval.
    """

    tsids: Bytes
    ranges: Int64s
    bounds: Int64s


def set_arrays(sets: Sequence[GtidSet]) -> SetArrays:
    """Lay out ``sets`` for ``contains``."""
    tsids = sorted({tsid_bytes(uuid, tag) for gtid_set in sets for uuid, tag, _ in gtid_set.items()})
    ranges: list[int] = []
    bounds: list[int] = []
    for gtid_set in sets:
        intervals_by_tsid = {tsid_bytes(uuid, tag): intervals for uuid, tag, intervals in gtid_set.items()}
        for tsid in tsids:
            ranges.append(len(bounds))
            bounds.extend(bound for interval in intervals_by_tsid.get(tsid, ()) for bound in interval)
            ranges.append(len(bounds))
    return SetArrays(
        np.frombuffer(b"".join(tsids), np.uint8).copy(), np.array(ranges, np.int64), np.array(bounds, np.int64)
    )


def tsid_bytes(uuid: bytes, tag: str) -> bytes:
    """Return a source as ``TSID_BYTES`` bytes."""
    return (uuid + bytes([len(tag)]) + tag.encode("ascii")).ljust(TSID_BYTES, b"\0")


def tsid_parts(tsid: bytes) -> tuple[bytes, str]:
    """Return the UUID and the tag of a source."""
    return tsid[:16], tsid[_TAG_AT : _TAG_AT + tsid[16]].decode("ascii", "replace")


@inner
def find_tsid(tsids: Bytes, tsid: Bytes, hint: int) -> int:
    """Return the index of the source ``tsid`` (``uint8[TSID_BYTES]``) in ``tsids``, or -1. ``hint`` is the likely
    index, or -1."""
    count = len(tsids) // TSID_BYTES
    for index in range(-1, count):
        candidate = hint if index < 0 else index
        if candidate < 0:
            continue
        same = True
        for word in range(0, TSID_BYTES, 8):
            if load64(tsids, candidate * TSID_BYTES + word) != load64(tsid, word):
                same = False
                break
        if same:
            return candidate
    return -1


@inner
def contains(sets: SetArrays, which: int, source: int, number: int) -> bool:
    """Return whether the set with index ``which`` contains the transaction ``number`` of ``source``. The source -1 is
    in no set."""
    if source < 0:
        return False
    entry = 2 * (len(sets.tsids) // TSID_BYTES * which + source)
    start = low = sets.ranges[entry]
    high = sets.ranges[entry + 1]
    # Count the bounds that are not greater than the number. An odd count means that the number is inside an interval.
    while low < high:
        middle = (low + high) >> 1
        if sets.bounds[middle] <= number:
            low = middle + 1
        else:
            high = middle
    return bool((low - start) & 1)


@inner
def set_untagged(tsid: Bytes, data: Bytes, uuid_at: int) -> None:
    """Write a source without a tag into ``tsid``. Its UUID is at ``data[uuid_at]``."""
    for word in range(16, TSID_BYTES, 8):
        for byte in range(8):
            tsid[word + byte] = 0
    for byte in range(16):
        tsid[byte] = load8(data, uuid_at + byte)


@kernel
def in_set(sets: SetArrays, which: int, source: int, number: int) -> bool:
    """Like ``contains``, for callers in Python."""
    return contains(sets, which, source, number)


# Parser of the tagged GTID event, in the format of the server library ``mysql/serialization``.


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
def tagged_commit_time(data: Bytes, at: int, end: int, original: bool) -> int:
    """Return the commit time in the body of a tagged GTID event, in microseconds since 1970, or -1.

    The commit time is field 6. The time of the first commit is field 7, which is absent if it is the same. The fields
    between the tag and these fields are integers; a signed integer is stored as twice its value. Any of these fields
    may be absent.
    """
    found = -1
    for _ in range(3):
        _, at = _variable(data, at, end) if at >= 0 else (0, -1)
    while at >= 0:
        field, at = _variable(data, at, end)
        if at < 0 or field > 7:
            return found
        count = 16 if field == 1 else 1
        value = 0
        for _ in range(count):
            value, at = _variable(data, at, end) if at >= 0 else (0, -1)
        if at < 0:
            return found
        if field == 3:
            at += value
        if field == 6 or (field == 7 and original):
            found = value
        if field == 7 or (field == 6 and not original):
            break
    return found


# Return codes of `read_commits`.
MORE, FOUND, ENDED, NO_ROOM, DAMAGED, NAMELESS = 0, 1, 2, 3, 4, 5
"""In this order: more bytes are needed; the transaction at ``state[POSITION]`` is the first one after the time limit or
outside the set; the end of the file, or of the requested part, is reached; ``runs`` is full; an event is damaged; a
transaction has no GTID."""

# `state`, int64.
AT, POSITION, CHECKSUM, SKIP, LATEST, LIMIT, RUNS, NEXT, STARTED, END = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
"""In this order: offset of the next event in the buffer; position of this event in the file; size of the checksum after
each event; number of bytes of an event that are still to be skipped; latest commit time so far; time limit, or -1;
number of runs; commit time of the transaction found; whether the head of the file was read; position in the file to
stop at, or -1."""
STATE_WORDS = 10

_TSID_WORDS = TSID_BYTES // 8
RUN_WORDS = _TSID_WORDS + 2
"""The number of words in the entry of a run. A run is a sequence of consecutive transactions of one source. Its entry
contains the TSID, the first number and the last number."""
_RECENT = 8


@inner
def commit_time(data: Bytes, body: int, body_end: int, kind: int, original: bool) -> int:
    """Return the commit time in microseconds since 1970, or -1.

    :param original: the time of the first commit, and not of the commit on this server.
    """
    if kind == TAGGED_GTID:
        return tagged_commit_time(data, body, body_end, original)
    # The fields are flags, UUID, number, a type code (2: two numbers for parallel appliers follow), and the commit time
    # in 7 bytes. If the highest bit of these 7 bytes is set, the time of the original commit on another server follows.
    if body + 49 > body_end or load8(data, body + 25) != 2:
        return -1
    at = body + 42
    if original and load8(data, at + 6) & 0x80:
        at += 7
        if at + 7 > body_end:
            return -1
    when: int = load32(data, at) | (load16(data, at + 4) << 32) | ((load8(data, at + 6) & 0x7F) << 48)
    return when


@inner
def _extend(runs: Int64s, state: Int64s, tsid: Bytes, number: int) -> bool:
    """Add a transaction to the runs. Return False if ``runs`` is full."""
    count = state[RUNS]
    for back in range(1, min(count, _RECENT) + 1):
        run = (count - back) * RUN_WORDS
        if runs[run + _TSID_WORDS + 1] + 1 != number:
            continue
        same = True
        for word in range(_TSID_WORDS):
            if runs[run + word] != load64(tsid, 8 * word):
                same = False
                break
        if same:
            runs[run + _TSID_WORDS + 1] = number
            return True
    if (count + 1) * RUN_WORDS > len(runs):
        return False
    for word in range(_TSID_WORDS):
        runs[count * RUN_WORDS + word] = load64(tsid, 8 * word)
    runs[count * RUN_WORDS + _TSID_WORDS] = runs[count * RUN_WORDS + _TSID_WORDS + 1] = number
    state[RUNS] = count + 1
    return True


@kernel
def read_commits(
    data: Bytes,
    end: int,
    state: Int64s,
    tsid: Bytes,
    runs: Int64s,
    crc_tables: Bytes,
    sets: SetArrays,
) -> int:
    """Skip the events in ``data[state[AT]:end]`` that precede a certain transaction: the first one that was committed
    after the time ``state[LIMIT]``. If this limit is -1, stop at the first transaction that is not in the set.

    :param tsid: ``uint8[TSID_BYTES]``, a work array.
    :param runs: receives the skipped transactions.
    :param sets: set 0 is used.
    :returns: one of the return codes at the top of this module.
    """
    while True:
        if state[SKIP]:
            size = min(state[SKIP], end - state[AT])
            state[AT] += size
            state[SKIP] -= size
            if state[SKIP]:
                return MORE
        at = state[AT]
        if end - at < HEADER_BYTES:
            return MORE
        length = load32(data, at + LENGTH_AT)
        if length < HEADER_BYTES or length > MAX_EVENT_BYTES:
            return DAMAGED
        kind = load8(data, at + KIND_AT)
        artificial = load16(data, at + FLAGS_AT) & ARTIFICIAL
        body, body_end = at + HEADER_BYTES, at + length - state[CHECKSUM]
        if kind in (HEARTBEAT, HEARTBEAT_V2) or (kind == ROTATE and artificial):
            state[SKIP] = length
            continue
        if kind == FORMAT_DESCRIPTION:
            if length > end - at:
                return MORE
            if length < HEADER_BYTES + CHECKSUM_BYTES + 58:
                return DAMAGED
                # The FORMAT_DESCRIPTION event always ends with a checksum. The byte before this checksum says whether
                # the other events have checksums.
            if load32(data, at + length - CHECKSUM_BYTES) != crc32(crc_tables, data, at, at + length - CHECKSUM_BYTES):
                return DAMAGED
            state[CHECKSUM] = CHECKSUM_BYTES if load8(data, at + length - CHECKSUM_BYTES - 1) == 1 else 0
            # If reading does not start at the beginning of the file, the server generates this event.
            if not artificial and state[POSITION] == FIRST_POSITION:
                state[POSITION] += length
            state[AT] += length
            state[STARTED] = 1
            continue
        if state[END] >= 0 and state[POSITION] >= state[END]:
            return ENDED
        if not state[STARTED] or load32(data, at + END_AT) != (state[POSITION] + length) & LOW_HALF:
            return DAMAGED
        if kind in (ROTATE, STOP):
            return ENDED
        if kind == ANONYMOUS_GTID:
            return NAMELESS
        if kind in (GTID, TAGGED_GTID):
            if length > end - at:
                return MORE
            if state[CHECKSUM] and load32(data, body_end) != crc32(crc_tables, data, at, body_end):
                return DAMAGED
            if kind == TAGGED_GTID:
                number = tagged_gtid(data, body, body_end, tsid)
            elif body + 25 <= body_end:
                set_untagged(tsid, data, body + 1)
                number = load64(data, body + 17)
            else:
                return DAMAGED
            when = commit_time(data, body, body_end, kind, False)
            if number < 1 or when < 0:
                return DAMAGED
            state[NEXT] = when
            if state[LIMIT] >= 0:
                if when > state[LIMIT]:
                    return FOUND
            elif not contains(sets, 0, find_tsid(sets.tsids, tsid, -1), number):
                return FOUND
            if not _extend(runs, state, tsid, number):
                return NO_ROOM
            state[LATEST] = max(state[LATEST], when)
        state[POSITION] += length
        state[SKIP] = length
