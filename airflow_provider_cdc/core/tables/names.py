"""Names of folders: safe in every file system, in URIs and in Hadoop paths."""

from __future__ import annotations

import hashlib
import re

from airflow_provider_cdc.core.tables.table import TableName

NAME_BYTES = 255
"""The longest name that file systems accept as one part of a path."""


def folder_name(table: TableName) -> str:
    """Return the folder name of a table: safe in file systems, URIs and Hadoop paths, and different for each table.

    The name is ``schema.table``. Bytes other than ASCII letters, digits, ``_ - $`` are written as ``~`` and two
    hexadecimal digits. A name that is too long for a file system is shortened, and ends in ``~~`` and a digest of the
    whole name. No other name has this ending. Copies of a part of a table have ``~part-`` and the part's digest after
    that, which is unambiguous because no encoded table name has a ``p`` after a ``~``.
    """
    name, more = f"{safe_name(table.schema)}.{safe_name(table.name)}", f"~part-{table.part}" if table.part else ""
    if len(name) + len(more) <= NAME_BYTES:
        return name + more
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    # Remove a ~XX that was cut.
    shortened = re.sub(r"~.?$", "", name[: NAME_BYTES - len(digest) - 2 - len(more)])
    return f"{shortened}~~{digest}{more}"


def safe_name(name: str) -> str:
    """Encode ``name`` in ASCII letters, digits, ``_ - $``; other bytes become ``~`` and two hexadecimal digits."""
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-$") else f"~{byte:02X}"
        for byte in name.encode()
    )
