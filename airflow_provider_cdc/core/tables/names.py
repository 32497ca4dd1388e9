"""Names of folders: safe in every file system, in URIs and in Hadoop paths."""

from __future__ import annotations

import hashlib
import re

from airflow_provider_cdc.core.tables.table import TableName

NAME_BYTES = 255
"""What file systems take as one part of a path."""


def folder_name(table: TableName) -> str:
    """``schema.table``, safe in every file system, in URIs and in Hadoop paths, and different for different tables.

    Bytes other than ASCII letters, digits, ``_ - $`` are written as ``~`` and two hexadecimal digits. What is longer
    than a file system takes ends in ``~~`` and a digest of the whole name, which no other name does. Copies of a part
    of a table have ``~part-`` and the part's digest after that: no name of a table has a ``~`` before a ``p``.
    """
    name, more = f"{safe_name(table.schema)}.{safe_name(table.name)}", f"~part-{table.part}" if table.part else ""
    if len(name) + len(more) <= NAME_BYTES:
        return name + more
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    # No half of a ~XX is left.
    shortened = re.sub(r"~.?$", "", name[: NAME_BYTES - len(digest) - 2 - len(more)])
    return f"{shortened}~~{digest}{more}"


def safe_name(name: str) -> str:
    """``name`` in ASCII letters, digits, ``_ - $``; other bytes as ``~`` and two hexadecimal digits."""
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-$") else f"~{byte:02X}"
        for byte in name.encode()
    )
