"""Receives a binary log file as a stream: the connection and the packets.

This module receives bytes into a small buffer that fits into the CPU cache. Then it copies them, without the packet
headers, into ``Dump.data``. So ``Dump.data`` has the same bytes as the file. Protocol:
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_binlog_dump.html.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pymysql
from pymysql.protocol import MysqlPacket

from airflow_provider_cdc.core.kernels import Bytes, Int64s, copy_bytes, inner, kernel, load8, load32, load64
from airflow_provider_cdc.errors import DecodeError, LogGone, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.driver import mapped_errors
from airflow_provider_cdc.sources.mysql.server.log_protocol import (
    CANNOT_READ_LOG,
    GTIDS_OFF,
    MAX_EVENT_BYTES,
    request_log,
)
from airflow_provider_cdc.sources.mysql.server.session import CONNECT_SECONDS, connect

RAW_BYTES = 1 << 18
DATA_BYTES = 1 << 21
SILENT_SECONDS = 300
"""A timeout. The server sends its data without pauses, so if it is silent for this long, the connection counts as
lost."""

# Indexes into the state array of `unpack`, and return codes of `unpack`.
RAW_AT, RAW_END, DATA_END, LEFT, CONTINUED, SEQUENCE = 0, 1, 2, 3, 4, 5
MORE, END, ERROR, BROKEN, FULL = 0, 1, 2, 3, 4

_MAX_PACKET = 0xFFFFFF
_SAME_REPLICA = "same server_uuid/server_id"
_NO_GTID = "anonymous transaction"


@kernel
def unpack(raw: Bytes, data: Bytes, state: Int64s) -> int:
    """Copy the payloads of the packets in ``raw[state[RAW_AT]:state[RAW_END]]`` to ``data[state[DATA_END]:]``.

    If ``raw`` contains only a part of a packet, ``state[LEFT]`` is the number of bytes that are still missing. An event
    of 16 MB or more is sent in several packets. Only the first of these packets begins with a zero byte.

    :returns: ``MORE``: everything was copied; ``END``: the server has no more events; ``ERROR``: the packet at
        ``state[RAW_AT]`` is the server's error message; ``BROKEN``: the bytes are not valid packets; ``FULL``: ``data``
        is too small.
    """
    while True:
        if state[LEFT]:
            size = min(state[LEFT], state[RAW_END] - state[RAW_AT])
            if size == 0:
                return MORE
            if state[DATA_END] + size > len(data):
                return FULL
            copy_bytes(data, state[DATA_END], raw, state[RAW_AT], size)
            state[RAW_AT] += size
            state[DATA_END] += size
            state[LEFT] -= size
            continue
        at = state[RAW_AT]
        header = 4 if state[CONTINUED] else 5
        if state[RAW_END] - at < 4:
            return MORE
        word = load32(raw, at)
        size = word & _MAX_PACKET
        if word >> 24 != state[SEQUENCE]:
            return BROKEN
        if not state[CONTINUED]:
            if size == 0:
                return BROKEN
            if state[RAW_END] - at < header:
                return MORE
            status = load8(raw, at + 4)
            if status == 0xFF:
                return ERROR
            if status == 0xFE and size < 9:
                return END
            if status != 0:
                return BROKEN
        state[SEQUENCE] = (state[SEQUENCE] + 1) & 0xFF
        state[RAW_AT] = at + header
        state[LEFT] = size - (header - 4)
        state[CONTINUED] = 1 if size == _MAX_PACKET else 0


class Dump:
    """Reads file ``name`` from byte ``start``. ``data[at:end]`` contains events. The last event may be incomplete.

    After processing events, the caller sets ``at`` to the offset after them and calls ``fill`` for more.

    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the privilege REPLICATION SLAVE is missing.
    """

    def __init__(self, settings: ConnectionSettings, name: str, start: int) -> None:
        self.data: Bytes = np.empty(DATA_BYTES, np.uint8)
        self.at = self.end = 0
        self.bytes = 0
        self._where = f"{settings.address}, log file {name}"
        self._raw: Bytes = np.empty(RAW_BYTES, np.uint8)
        self._state: Int64s = np.zeros(8, np.int64)
        self._state[SEQUENCE] = 1
        # Use a shorter timeout at first: a server that is silent before it sends log data has not accepted the login.
        self._connection = connect(settings, read_timeout=CONNECT_SECONDS)
        try:
            with mapped_errors(self._where):
                self._request(name, start)
        except BaseException:
            self.close()
            raise

    def _request(self, name: str, start: int) -> None:
        request_log(self._connection, name, start)
        self._socket = self._connection.bare_socket(SILENT_SECONDS)

    def close(self) -> None:
        """End the session without a COM_QUIT, because a server that is sending would not read the COM_QUIT."""
        self._connection.drop()

    def abandon(self) -> None:
        """If another thread waits in ``fill``, make its call fail at once. Closing the session would not wake that
        thread."""
        with suppress(OSError):
            # Call shutdown() of the plain socket class, because shutdown() of a TLS socket would discard the state that
            # the other thread uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def fill(self) -> bool:
        """Receive at least one byte. Return False if the server has no more data.

        :raises LogGone: the server cannot read the file, or cannot read it from this position.
        :raises SourceUnavailable: the connection broke.
        :raises DecodeError: the bytes are not valid packets, or an event is larger than the maximum.
        """
        self._make_room()
        state = self._state
        received = False
        while True:
            state[DATA_END] = self.end
            code = unpack(self._raw, self.data, state)
            received = received or int(state[DATA_END]) > self.end
            self.end = int(state[DATA_END])
            if code == FULL:
                if received:
                    return True
                self._grow()
            elif code == END:
                return received
            elif code == BROKEN:
                raise DecodeError(
                    "the server's packets are out of order",
                    where=self._where,
                    hint="check for a proxy between this machine and the server",
                )
            elif code == ERROR:
                self._raise_error()
            elif received:
                return True
            else:
                self._receive()

    def _make_room(self) -> None:
        rest = self.end - self.at
        self.data[:rest] = self.data[self.at : self.end]
        self.at, self.end = 0, rest
        if rest > len(self.data) // 2:
            self._grow()

    def _grow(self) -> None:
        if len(self.data) > MAX_EVENT_BYTES:
            raise DecodeError(
                "an event is larger than 1 GiB", where=self._where, hint="verify the log with mysqlbinlog"
            )
        data: Any = np.empty(2 * len(self.data), np.uint8)
        data[: self.end] = self.data[: self.end]
        self.data = data

    def _receive(self) -> None:
        state = self._state
        rest = int(state[RAW_END] - state[RAW_AT])
        self._raw[:rest] = self._raw[int(state[RAW_AT]) : int(state[RAW_END])]
        with mapped_errors(self._where):
            size = self._socket.recv_into(memoryview(self._raw.data)[rest:])
        if size == 0:
            raise SourceUnavailable(
                "the server closed the connection", where=self._where, hint="the task can be retried as it is"
            )
        self.bytes += size
        state[RAW_AT], state[RAW_END] = 0, rest + size

    def _raise_error(self) -> None:
        """Raise the error in the current error packet. Receive the rest of the packet first if needed."""
        state = self._state
        while True:
            at, stop = int(state[RAW_AT]), int(state[RAW_END])
            size = int.from_bytes(self._raw[at : at + 3].tobytes(), "little")
            if stop - at >= 4 + size or size > RAW_BYTES // 2:
                break
            self._receive()
        packet = MysqlPacket(self._raw[at + 4 : at + 4 + size].tobytes(), "utf8")
        try:
            packet.raise_for_error()
        except pymysql.MySQLError as error:
            code, text = error.args
            if code == CANNOT_READ_LOG and _SAME_REPLICA not in text:
                hint = (
                    "keep gtid_mode=ON from a run's position on, then trigger a new run"
                    if _NO_GTID in text or GTIDS_OFF in text
                    else "trigger a new run; if the file was purged, make the server keep its logs for longer "
                    "(binlog_expire_logs_seconds)"
                )
                raise LogGone(f"the server cannot read the log file: {text}", where=self._where, hint=hint) from error
            with mapped_errors(self._where):
                raise
        except struct.error as error:
            raise DecodeError(
                "the server's error packet is malformed",
                where=self._where,
                hint="check for a proxy between this machine and the server",
            ) from error


# Computes the CRC-32 of binary log events. It uses zlib's polynomial, and covers an event without its last four bytes.
#
# The tables allow the loop to process sixteen bytes per step ("slicing", Kounavis and Berry, 2005). Each step depends
# on the previous step. So longer events are divided into pairs of strands, and the steps of the two strands alternate.
# At the end of the strands, the two CRCs are combined. This is possible because the CRC is linear: the CRC of the first
# strand can be shifted past the second strand (as in zlib's crc32_combine). The kernel exists because most events are
# so short that a call from Python to zlib would cost more than the computation.


_POLYNOMIAL = 0xEDB88320
_SLICES = 16
_STRAND_BYTES = 256


def _make_tables() -> Bytes:
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ _POLYNOMIAL, first >> 1).astype(np.uint32)
    tables = [first]
    for _ in range(_SLICES - 1):
        tables.append(tables[-1] >> 8 ^ first[tables[-1] & 0xFF])
    # Zero bytes that follow a CRC have the same effect on a byte of this CRC as on one of the last four bytes of data.
    moved = list(reversed(tables[:4]))
    for _ in range(_STRAND_BYTES - 4):
        moved = [table >> 8 ^ first[table & 0xFF] for table in moved]
    tables += moved
    return np.concatenate(tables).astype("<u4").view(np.uint8)


TABLES = _make_tables()
"""``uint8[20 * 256 * 4]``, little-endian words. For ``s`` up to 15, word ``256 * s + b`` is the CRC of byte ``b``
followed by ``s`` zero bytes. For ``s`` from 16 on, take a CRC whose byte ``s - 16`` is ``b`` and whose other bytes are
0: the word is this CRC after one strand of zero bytes."""


@inner
def _step(tables: Bytes, data: Bytes, at: int, crc: int) -> int:
    """Return ``crc`` updated with the sixteen bytes of ``data`` from ``at``."""
    low = load64(data, at) ^ crc
    high = load64(data, at + 8)
    crc = 0
    for byte in range(8):
        crc ^= load32(tables, 1024 * (15 - byte) + 4 * (low >> 8 * byte & 0xFF))
        crc ^= load32(tables, 1024 * (7 - byte) + 4 * (high >> 8 * byte & 0xFF))
    return crc


@inner
def crc32(tables: Bytes, data: Bytes, at: int, end: int) -> int:
    """Return the CRC-32 of ``data[at:end]``. The caller guarantees that the range is inside the array."""
    crc = 0xFFFFFFFF
    while at + 2 * _STRAND_BYTES <= end:
        following = 0
        for _ in range(_STRAND_BYTES // 16):
            crc = _step(tables, data, at, crc)
            following = _step(tables, data, at + _STRAND_BYTES, following)
            at += 16
        for byte in range(4):
            following ^= load32(tables, 1024 * (_SLICES + byte) + 4 * (crc >> 8 * byte & 0xFF))
        crc = following
        at += _STRAND_BYTES
    while at + 16 <= end:
        crc = _step(tables, data, at, crc)
        at += 16
    while at + 4 <= end:
        word = load32(data, at) ^ crc
        crc = 0
        for byte in range(4):
            crc ^= load32(tables, 1024 * (3 - byte) + 4 * (word >> 8 * byte & 0xFF))
        at += 4
    while at < end:
        crc = load32(tables, 4 * ((crc ^ load8(data, at)) & 0xFF)) ^ crc >> 8
        at += 1
    return crc ^ 0xFFFFFFFF
