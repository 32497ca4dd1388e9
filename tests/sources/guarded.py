"""Memory with a guard page: a read beyond its end crashes."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_PROT_NONE = 0


@contextmanager
def guarded(data: bytes) -> Iterator[pa.Buffer]:
    """``data`` at the end of a page before one that cannot be read: reading too far ends the process."""
    page = mmap.PAGESIZE
    room = (len(data) + page - 1) // page * page
    memory = mmap.mmap(-1, room + page)
    anchor = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(anchor)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + room), page, _PROT_NONE) == 0
    memory[room - len(data) : room] = data
    try:
        yield pa.foreign_buffer(start + room - len(data), len(data))
    finally:
        assert libc.mprotect(ctypes.c_void_p(start + room), page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        del anchor
        memory.close()
