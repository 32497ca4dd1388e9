"""The interface of a database for the demo: the shop, the writers, and an independent proof."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Protocol

from harness.demo.plain_read import PlainRead
from harness.demo.writers import Writers

SCHEMA = "shop"

Row = tuple[Any, ...]

KEYS = {"accounts": 1, "ledger": 2, "customers": 1, "sessions": 1, "clicks": 0}
"""The tables, and how many of each table's first columns are its key. ``clicks`` has no key."""


class Stage(Protocol):
    """A running server of one kind with the shop."""

    kind: str
    title: str
    """Product, version and port."""
    proof: str
    """The method that rebuilds the shop at the initial position."""
    columns: dict[str, list[str]]

    def fill(self, rows: int) -> None:
        """Create the shop with about ``rows`` rows in all tables together."""

    def copy_base(self) -> None:
        """Copy the shop as the starting point of the proof. No session may write meanwhile."""

    def connection(self) -> dict[str, object]:
        """Create a user with the least necessary privileges, and return the fields of its Airflow connection."""

    def writers(self, per_second: float) -> Writers:
        """Return the writers: four sessions."""

    def plain_read(self, pause: float) -> PlainRead:
        """Return the plain read, for comparison."""

    def rebuild(self, position: str) -> str:
        """Bring the copy of `copy_base` to ``position`` without this package. Return a line that describes the work."""

    def truth(self, table: str) -> Counter[Row]:
        """Return a table's rows after `rebuild`."""

    def comparable_row(self, row: Row, columns: list[str]) -> Row:
        """Convert a row from the server, the proof or a Parquet file to a form that can be compared."""


class StageFactory(Protocol):
    """Starts a stage in a folder."""

    def __call__(self, folder: Any) -> AbstractContextManager[Stage]: ...
