"""What the demo needs of a database: the same shop, the same writers, and a proof of its own."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Protocol

from harness.demo.plain_read import PlainRead
from harness.demo.writers import Writers

SCHEMA = "shop"

Row = tuple[Any, ...]

KEYS = {"accounts": 1, "ledger": 2, "customers": 1, "sessions": 1, "clicks": 0}
"""The tables, and how many of a table's first columns are its key; ``clicks`` has nothing that tells its rows apart."""


class Stage(Protocol):
    """A running server of one kind, with the shop on it."""

    kind: str
    title: str
    """Product, version and port."""
    proof: str
    """What rebuilds the shop at the initial position."""
    columns: dict[str, list[str]]

    def fill(self, rows: int) -> None:
        """Make the shop with about ``rows`` rows over all tables."""

    def copy_base(self) -> None:
        """What the proof starts from. Nobody writes meanwhile."""

    def connection(self) -> dict[str, object]:
        """The fields of an Airflow connection for a user with the least rights that it takes."""

    def writers(self, per_second: float) -> Writers:
        """Four sessions that will write."""

    def plain_read(self, pause: float) -> PlainRead:
        """The read to be measured against."""

    def rebuild(self, position: str) -> str:
        """Bring what `copy_base` took to ``position``, without this package; returns a line that says what was done."""

    def truth(self, table: str) -> Counter[Row]:
        """A table's rows as `rebuild` left them."""

    def comparable_row(self, row: Row, columns: list[str]) -> Row:
        """One form for a row, whether it comes from the server, from the proof or from a Parquet file."""


class StageFactory(Protocol):
    """Starts a stage in a folder."""

    def __call__(self, folder: Any) -> AbstractContextManager[Stage]: ...
