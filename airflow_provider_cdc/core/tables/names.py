"""Names of folders, which are safe in every file system, in URIs and in Hadoop paths."""

from __future__ import annotations

import hashlib
import re

from airflow_provider_cdc.core.tables.table import TableName

NAME_BYTES = 255
"""The maximum number of bytes that file systems accept in one part of a path."""


def folder_name(table: TableName) -> str:
    """Return the folder name of a table. The name is safe in file systems, URIs and Hadoop paths, and is different for
    each table.

    The name is ``schema.table``. Bytes other than ASCII letters, digits, ``_ - $`` are written as ``~`` and two
    hexadecimal digits. A name that is too long for a file system is shortened, and ends in ``~~`` and a digest of the
    whole name. No other name has this ending. For copies of a part of a table, ``~part-`` and the part's digest follow
    the name. This is unambiguous, because no encoded table name has a ``p`` after a ``~``.
    """
    name, more = f"{safe_name(table.schema)}.{safe_name(table.name)}", f"~part-{table.part}" if table.part else ""
    if len(name) + len(more) <= NAME_BYTES:
        return name + more
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    # Remove an incomplete ~XX at the end.
    shortened = re.sub(r"~.?$", "", name[: NAME_BYTES - len(digest) - 2 - len(more)])
    return f"{shortened}~~{digest}{more}"


def safe_name(name: str) -> str:
    """Encode ``name`` in ASCII letters, digits, ``_ - $``; other bytes become ``~`` and two hexadecimal digits."""
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-$") else f"~{byte:02X}"
        for byte in name.encode()
    )
