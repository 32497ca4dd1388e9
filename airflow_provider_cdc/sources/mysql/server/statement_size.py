"""How large statements may be. The server refuses one that is larger than its max_allowed_packet, and ends the session.

So whatever puts a list into a statement puts as much of it there as there is room for, and sends several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.sources.mysql.server.session import Connection

_Item = TypeVar("_Item")

_MOST_BYTES = 1 << 22
"""More is of no use, and costs the server memory."""
_LEAST_BYTES = 1 << 13
"""So much is sent without asking the server what it takes."""
_NUMBER_BYTES = 24
_QUOTES_BYTES = 12
"""Around a text or binary literal, or before a parameter."""


def room(connection: Connection) -> int:
    """The bytes that the lists of one statement may have; the rest is for what stands around them."""
    return min(connection.max_packet // 2, _MOST_BYTES)


def fits(connection: Connection, size: int) -> bool:
    """Whether a statement has room for so many bytes."""
    return size <= _LEAST_BYTES or size <= room(connection)


def size_of(values: Iterable[KeyValue]) -> int:
    """The bytes of values in a statement, at most: each byte may be escaped."""
    return sum(
        _NUMBER_BYTES
        if isinstance(value, int)
        else _QUOTES_BYTES + 2 * len(value if isinstance(value, bytes) else value.encode())
        for value in values
    )


def batches(
    connection: Connection, items: Sequence[_Item], bytes_of: Callable[[_Item], int], most: int
) -> Iterator[Sequence[_Item]]:
    """``items`` in their order, in runs of at most ``most`` items that fit into one statement; one item at least.

    :param bytes_of: what an item adds to a statement.
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
