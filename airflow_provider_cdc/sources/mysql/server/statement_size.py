"""The maximum size of statements.

The server rejects a statement that is larger than the server's max_allowed_packet, and ends the session. So code that
puts a list into a statement distributes the list over several statements that are small enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.sources.mysql.server.session import Connection

_Item = TypeVar("_Item")

_MOST_BYTES = 1 << 22
"""The maximum size of a statement in bytes. Larger statements are not faster, and use more memory on the server."""
_LEAST_BYTES = 1 << 13
"""Statements up to this number of bytes are sent without querying the server's limit."""
_NUMBER_BYTES = 24
_QUOTES_BYTES = 12
"""The number of bytes around a text or binary literal, or before a parameter."""


def room(connection: Connection) -> int:
    """Return the number of bytes that the lists in one statement may have. The rest of the statement's size is for the
    text around the lists."""
    return min(connection.max_packet // 2, _MOST_BYTES)


def fits(connection: Connection, size: int) -> bool:
    """Return whether a list of ``size`` bytes fits into one statement."""
    return size <= _LEAST_BYTES or size <= room(connection)


def size_of(values: Iterable[KeyValue]) -> int:
    """Return the maximum number of bytes that the values need in a statement, because each byte may be escaped."""
    return sum(
        _NUMBER_BYTES
        if isinstance(value, int)
        else _QUOTES_BYTES + 2 * len(value if isinstance(value, bytes) else value.encode())
        for value in values
    )


def batches(
    connection: Connection, items: Sequence[_Item], bytes_of: Callable[[_Item], int], most: int
) -> Iterator[Sequence[_Item]]:
    """Split ``items``, in their order, into batches that fit into one statement.

    Each batch has at least one item and at most ``most`` items.

    :param bytes_of: a function that returns the number of bytes that an item adds to a statement.
    """
    sizes = [bytes_of(item) for item in items]
    limit = _LEAST_BYTES if sum(sizes) <= _LEAST_BYTES else room(connection)
    start = held = 0
    for index, size in enumerate(sizes):
        if index > start and (held + size > limit or index - start == most):
            yield items[start:index]
            start, held = index, 0
        held += size
    if start < len(items):
        yield items[start:]
