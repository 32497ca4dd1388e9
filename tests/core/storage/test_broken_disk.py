"""A disk that breaks (EIO) causes an error that may be retried, and no record that a later step could rely on.

A device that fails on demand requires a kernel module (device-mapper) or a custom file system (FUSE), and root, which
tests must do without. Instead, the kernel itself rejects system calls of a process with EIO from some moment on
(seccomp, which needs no privileges). fsync reports what a disk fails to write back, so fsync is the call that fails
here. Such a filter cannot distinguish files.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FSYNC = {"x86_64": (74, 75), "aarch64": (82, 83)}
"""fsync and fdatasync, by machine."""

SCRIPT = """
import ctypes, errno, os, struct, sys
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import StorageUnavailable

NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
REFUSE, ALLOW = 0x00050000 | errno.EIO, 0x7FFF0000

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

def break_disk(first, second):
    program = b"".join(struct.pack("HBBI", *one) for one in [
        (LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 2, 0, first), (JUMP_IF_EQUAL, 1, 0, second),
        (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)])
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(SECCOMP, FILTER, ctypes.byref(Program(5, program)), 0, 0) == 0, os.strerror(ctypes.get_errno())

lake = Storage(sys.argv[1])
lake.write_json("head.json", {"copy": "first"})
break_disk(int(sys.argv[2]), int(sys.argv[3]))
for write in (lake.write_json, lake.create_json):
    for name in ("head.json", "record.json", "folder/record.json"):
        try:
            write(name, {"copy": "second"})
        except StorageUnavailable as error:
            assert "Input/output error" in str(error), error
        else:
            assert write == lake.create_json and name == "head.json", (write, name)
"""


def test_what_could_not_be_written_is_not_there(tmp_path: Path) -> None:
    if platform.machine() not in FSYNC:
        pytest.skip(f"the number of fsync on {platform.machine()} is not known here")
    numbers = map(str, FSYNC[platform.machine()])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path.as_uri(), *numbers],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["head.json"]
    assert "first" in (tmp_path / "head.json").read_text()
