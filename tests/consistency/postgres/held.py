"""Holds a commit at a point that no SQL can reach: its record is in the log, and no session can see it yet.

A session writes the commit's record, then marks the transaction as committed in pg_xact, and then removes it from the
list of running transactions. Readers whose snapshot came from the log, and not from that list, depend on the mark. So
the session is stopped right before it sets the mark: the function that sets it begins with a jump to itself, in that
session's memory only, until the session is released.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.postgres_server import PostgresServer

Connection = psycopg.Connection[tuple[Any, ...]]

_FUNCTION = b"TransactionIdCommitTree"
_TO_ITSELF = {"x86_64": b"\xeb\xfe", "aarch64": b"\x00\x00\x00\x14"}
_SECONDS = 60
_BUSY_TICKS = 5


class HeldSession:
    """A session whose next commit stops right before it is marked, until `let_go`."""

    def __init__(self, server: PostgresServer) -> None:
        machine = platform.machine()
        if machine not in _TO_ITSELF:
            pytest.skip(f"no instruction is known by which a session of {machine} waits")
        self.connection: Connection = server.connect()
        self._pid = self.connection.info.backend_pid
        self._instruction = _TO_ITSELF[machine]
        program = server.binaries.image
        try:
            self._place = _base(self._pid, program) + _offset(program)
            self._original = self._read()
            self._write(self._instruction)
        except OSError as error:
            self.connection.close()
            pytest.skip(f"the memory of other processes cannot be changed here: {error}")

    def wait_until_held(self) -> None:
        """Wait until the session is held at the mark: before that it uses almost no CPU time."""
        begun, deadline = self._ticks(), time.monotonic() + _SECONDS
        while self._ticks() < begun + _BUSY_TICKS:
            assert time.monotonic() < deadline, "the session does not come to its commit"
            time.sleep(0.01)

    def let_go(self) -> None:
        """Have the session go on; it may have gone on before."""
        if not self.connection.closed:
            self._write(self._original)

    def _ticks(self) -> int:
        return int(Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[11])

    def _read(self) -> bytes:
        with Path(f"/proc/{self._pid}/mem").open("rb", 0) as memory:
            return os.pread(memory.fileno(), len(self._instruction), self._place)

    def _write(self, code: bytes) -> None:
        with Path(f"/proc/{self._pid}/mem").open("r+b", 0) as memory:
            os.pwrite(memory.fileno(), code, self._place)


@contextmanager
def held_session(server: PostgresServer) -> Iterator[HeldSession]:
    """A session whose next commit is held. It is released at the end."""
    held = HeldSession(server)
    try:
        yield held
    finally:
        held.let_go()


def _base(pid: int, program: Path) -> int:
    """Return the address of the program's first byte in the memory of a process."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, _, offset, *_, name = line.split()
        if Path(name) == program and int(offset, 16) == 0:
            return int(place.partition("-")[0], 16)
    raise OSError(f"{program} is not in the memory of process {pid}")


def _offset(program: Path) -> int:
    """Return the offset of the function in the program, from its table of dynamic symbols (ELF)."""
    data = program.read_bytes()
    segments, sections = struct.unpack_from("<QQ", data, 0x20)
    segment, parts, size, count = struct.unpack_from("<HHHH", data, 0x36)
    loaded = [struct.unpack_from("<IIQQ", data, segments + number * segment) for number in range(parts)]
    # Programs with a fixed load address use absolute addresses.
    (begin,) = (place for kind, _, offset, place in loaded if kind == 1 and offset == 0)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + number * size) for number in range(count)]
    for _, kind, _, _, at, length, names, *_ in headers:
        if kind != 11:
            continue
        text = headers[names][4]
        for symbol in range(at, at + length, 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, symbol)
            if data[text + name : text + name + len(_FUNCTION) + 1] == _FUNCTION + b"\0":
                return int(value) - int(begin)
    raise OSError(f"{program} does not tell where {_FUNCTION.decode()} is")
