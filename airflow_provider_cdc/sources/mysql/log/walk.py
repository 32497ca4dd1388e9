"""The kernel that walks binary log events: everything that a log is full of, without a step of Python per event.

It follows the transactions, tells by their GTIDs which of them count, keeps the table maps apart and nets the rows of
the copied tables (``netting.py``). Whatever is rare or odd it leaves to the caller: it returns ``ODD`` with the event
at ``state[AT]``, whose checksum it has verified.

Formats: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html.
"""

from __future__ import annotations

from airflow_provider_cdc.core.kernel import Bytes, Int32s, Int64s, inner, kernel, load8, load16, load32, load64
from airflow_provider_cdc.sources.mysql.log.crc32 import crc32
from airflow_provider_cdc.sources.mysql.log.membership import TSID_BYTES, contains, find_tsid, set_untagged
from airflow_provider_cdc.sources.mysql.log.row_events import equal, net_rows
from airflow_provider_cdc.sources.mysql.log.tagged_gtid import tagged_gtid
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    AT,
    BAD_CHECKSUM,
    BAD_GTID,
    BAD_LENGTH,
    BAD_POSITION,
    BEGUN,
    BETWEEN,
    CHECKSUM,
    DONE,
    IGNORED,
    MAP_AT,
    MAP_BYTES,
    MAP_SERIAL,
    MAP_TABLE,
    MAP_WORDS,
    MORE,
    NUMBER,
    ODD,
    OPEN,
    OTHER_SHAPE,
    OUT_OF_PLACE,
    PHASE,
    POSITION,
    ROW,
    SERIAL,
    SHAPE,
    SOURCE,
    STOP,
    TABLE_WORDS,
    TRACKED,
    TRANSACTIONS,
    UNTRACKED,
    UPPER,
    XA,
)

_HEADER_BYTES = 19
_MAX_EVENT_BYTES = 2**30 + 2**20
_ARTIFICIAL = 0x20
_LOW_HALF = (1 << 32) - 1


@inner
def _advance(state: Int64s, length: int) -> None:
    state[AT] += length
    if state[POSITION] >= 0:
        state[POSITION] += length


@inner
def find_map(maps: Int64s, number: int) -> int:
    """The word of ``maps`` at which the entry for a table number is or would be."""
    mask = len(maps) // MAP_WORDS - 1
    entry = number & mask
    while maps[entry * MAP_WORDS] != 0 and maps[entry * MAP_WORDS] != number + 1:
        entry = (entry + 1) & mask
    return entry * MAP_WORDS


@kernel
def walk(
    data: Bytes,
    end: int,
    state: Int64s,
    tsid: Bytes,
    tsids: Bytes,
    set_ranges: Int64s,
    set_bounds: Int64s,
    crc_tables: Bytes,
    maps: Int64s,
    map_bytes: Bytes,
    tables: Int64s,
    prefixes: Int32s,
    widths: Int32s,
    slots: Int32s,
    key_prefixes: Int32s,
    ranges: Int64s,
    after_ranges: Int64s,
    arena: Int64s,
    bytes_: Bytes,
    hash_slots: Int64s,
    net_state: Int64s,
) -> int:
    """Walk the events of ``data[state[AT]:end]`` as far as they are whole and ordinary.

    :param tsid: ``uint8[TSID_BYTES]``, the current transaction's source.
    :param tsids, set_ranges, set_bounds: from ``membership.set_arrays``; set 0 is the initial position.
    :param ranges, after_ranges: ``int64[2 * keys]`` to work in, for the most key columns that a table has.
    :param arena, bytes_, hash_slots, net_state: of ``netting.NetChange``.
    :returns: one of the codes above.
    """
    sources = len(tsids) // TSID_BYTES
    checksum = state[CHECKSUM]
    while True:
        if state[STOP] >= 0 and state[POSITION] >= state[STOP]:
            return DONE if state[POSITION] == state[STOP] else BAD_POSITION
        at = state[AT]
        if end - at < _HEADER_BYTES:
            return MORE
        length = load32(data, at + 9)
        if length < _HEADER_BYTES + checksum or length > _MAX_EVENT_BYTES:
            return BAD_LENGTH
        if length > end - at:
            return MORE
        body = at + _HEADER_BYTES
        body_end = at + length - checksum
        kind = load8(data, at + 4)
        if checksum and state[ROW] == 0 and load32(data, body_end) != crc32(crc_tables, data, at, body_end):
            return BAD_CHECKSUM
        if kind == 27 or kind == 41:  # heartbeats are not in the file
            state[AT] += length
            continue
        in_file = state[POSITION] >= 0 and not load16(data, at + 17) & _ARTIFICIAL
        if in_file and load32(data, at + 13) != (state[POSITION] + length) & _LOW_HALF:
            return BAD_POSITION

        phase = state[PHASE]
        if kind == 33 or kind == 42:
            if phase != BETWEEN or state[POSITION] < 0:
                return OUT_OF_PLACE
            if kind == 33:
                if body + 25 > body_end:
                    return BAD_GTID
                set_untagged(tsid, data, body + 1)
                number = load64(data, body + 17)
            else:
                number = tagged_gtid(data, body, body_end, tsid)
            if number < 1:
                return BAD_GTID
            source = find_tsid(tsids, tsid, state[SOURCE])
            ignored = contains(set_ranges, set_bounds, sources, 0, source, number)
            state[SOURCE] = source
            state[NUMBER] = number
            state[IGNORED] = 1 if ignored else 0
            state[TRANSACTIONS] += 0 if ignored else 1
            state[SERIAL] += 1
            state[TRACKED] = 0
            state[XA] = -1
            state[PHASE] = BEGUN
        elif kind == 2:
            if body + 13 > body_end:
                return BAD_LENGTH
            text = body + 14 + load8(data, body + 8) + load16(data, body + 11)
            size = body_end - text
            if size < 0:
                return BAD_LENGTH
            if size == 5 and load32(data, text) == 0x49474542 and load8(data, text + 4) == 0x4E:  # BEGIN
                if phase != BEGUN:
                    return OUT_OF_PLACE
                state[PHASE] = OPEN
            elif size == 6 and load32(data, text) == 0x4D4D4F43 and load16(data, text + 4) == 0x5449:  # COMMIT
                if phase != OPEN:
                    return OUT_OF_PLACE
                state[PHASE] = BETWEEN
            elif not (
                phase >= OPEN
                and size > 10
                and load64(data, text) == 0x4E494F5045564153
                and load16(data, text + 8) == 0x2054
            ):  # SAVEPOINT and a space
                return ODD
        elif kind == 16:
            if phase != OPEN:
                return OUT_OF_PLACE
            state[PHASE] = BETWEEN
        elif kind == 19 or 23 <= kind <= 25 or 30 <= kind <= 32 or kind == 39:
            if phase < OPEN:
                return OUT_OF_PLACE
            if not state[IGNORED] or state[XA] >= 0:
                if body + 8 > body_end:
                    return BAD_LENGTH
                entry = find_map(maps, load32(data, body) | load16(data, body + 4) << 32)
                if kind == 19:
                    if (
                        maps[entry] == 0
                        or maps[entry + MAP_BYTES] != body_end - body
                        or not equal(data, body, map_bytes, maps[entry + MAP_AT], body_end - body)
                    ):
                        return ODD
                    maps[entry + MAP_SERIAL] = state[SERIAL]
                else:
                    table = maps[entry + MAP_TABLE]
                    if maps[entry] == 0 or maps[entry + MAP_SERIAL] != state[SERIAL]:
                        return OUT_OF_PLACE
                    if table == OTHER_SHAPE:
                        return SHAPE
                    if table >= 0 and state[XA] < 0:
                        upper = tables[table * TABLE_WORDS + UPPER]
                        if upper and not contains(set_ranges, set_bounds, sources, upper, state[SOURCE], state[NUMBER]):
                            table = UNTRACKED
                    if table >= 0:
                        code = net_rows(
                            data, kind, body_end, state, table, tables, prefixes, widths, slots, key_prefixes, ranges,
                            after_ranges, arena, bytes_, hash_slots, net_state,
                        )  # fmt: skip
                        if code != MORE:
                            return code
        elif not (kind == 5 or kind == 13 or kind == 14 or kind == 28 or kind == 29 or kind == 36 or kind == 37):
            # Those are values for a statement that follows, comments, and the bookkeeping of group replication.
            return ODD
        _advance(state, length)
