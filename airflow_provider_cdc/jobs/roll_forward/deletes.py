"""Decides which files of a copy get position deletes instead of being written again."""

from __future__ import annotations

TOUCHED_SHARE = 0.05
"""If the window touches this share of the rows of a file, or more, the file is written again."""
DELETED_SHARE = 0.10
"""If this share of the rows of a file, or more, would be deleted in all, the file is written again. Readers must read
the deleted rows and drop them, so this share limits the cost of reading."""
MOST_DELETES = 4_000_000
"""The maximum number of positions in one delete file. Readers hold them in memory."""


def deletes_suffice(rows: int, deleted: int, removed: int, added: int) -> bool:
    """Return whether a file needs only position deletes, and its new rows can go into another file.

    :param rows: the number of rows of the file, deleted ones included.
    :param deleted: the number of rows that earlier runs deleted.
    :param removed: the number of rows that the window removes or replaces.
    :param added: the number of rows that the window adds in the file's range of keys.
    """
    gone = deleted + removed
    return removed + added < rows * TOUCHED_SHARE and gone < rows * DELETED_SHARE and gone <= MOST_DELETES
