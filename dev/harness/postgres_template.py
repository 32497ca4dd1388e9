"""Copies PostgreSQL data directories from a template, because initdb takes longer than starting a server."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.postgres_binaries import PostgresBinaries

_POLYNOMIAL = 0x82F63B78


def copy_template(
    binaries: PostgresBinaries, arguments: Sequence[str], data: Path, run: Callable[[Sequence[str]], None]
) -> None:
    """Make a data directory as ``initdb`` does, with its own system identifier.

    :param arguments: options of ``initdb``.
    :param data: an existing empty folder, owned by the server's user.
    :param run: runs a program of the server as that user.
    """
    made = [*arguments, binaries.version, str(os.geteuid())]
    digest = hashlib.sha256(repr(made).encode()).hexdigest()[:12]
    template = cache_directory() / "postgres" / f"template-{binaries.major}-{digest}"
    with locked("postgres-template"):
        if not template.exists():
            with building(template) as work:
                owner = data.stat()
                os.chown(work, owner.st_uid, owner.st_gid)
                run([binaries.tool("initdb"), "--pgdata", str(work), *arguments])
                # The template needs no log, because `pg_resetwal` creates a new one.
                for file in (work / "pg_wal").iterdir():
                    if file.is_file():
                        file.unlink()
    # Use cp, because shutil does not copy owners.
    subprocess.run(["cp", "-a", f"{template}/.", str(data)], check=True)
    _identify(data / "global/pg_control")
    # Reset the log, because its pages also contain the identifier.
    run([binaries.tool("pg_resetwal"), "--force", "--pgdata", str(data)])


def _identify(control: Path) -> None:
    """Write a new system identifier, which identifies a server, to a control file.

    The identifier is the first field of the file. A checksum follows the last field. Its place depends on the version.
    """
    content = bytearray(control.read_bytes())
    end = _checksum_at(content)
    struct.pack_into("=Q", content, 0, int.from_bytes(os.urandom(8)) >> 1)
    struct.pack_into("=I", content, end, _crc32c(content[:end]))
    control.write_bytes(content)


def _checksum_at(content: bytes | bytearray) -> int:
    for end in range(64, 1024, 4):
        if struct.unpack_from("=I", content, end)[0] == _crc32c(content[:end]):
            return end
    raise HarnessError("the checksum in the control file of PostgreSQL was not found")


def _crc32c(content: bytes | bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
