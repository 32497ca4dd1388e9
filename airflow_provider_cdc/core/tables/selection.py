"""The part of a table that a run copies: the rows that fulfil a condition, and some of the columns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.core.filters.parser import Term
from airflow_provider_cdc.errors import ConfigurationError

_DIGITS = 16


@dataclass(frozen=True)
class Selection:
    """Part of a table: the rows that fulfil ``where`` (None: all rows), and the requested ``columns``, sorted (empty:
    all columns). The columns of the key are always published, too."""

    where: Term | None = None
    columns: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the selection is the whole table."""
        return self.where is None and not self.columns

    @property
    def condition(self) -> str:
        """The condition as canonical text; empty: all rows."""
        return "" if self.where is None else str(self.where)

    @property
    def part(self) -> str:
        """A digest of the condition and the columns; empty: the whole table."""
        if self.whole:
            return ""
        # Include the length of each part. Otherwise, two column names could give the same text as one longer column
        # name.
        parts = [self.condition, *self.columns]
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    def published(self, columns: Sequence[str], key: Sequence[str]) -> list[str]:
        """Return the published columns, in the order of ``columns``, which are all columns of the table."""
        return [name for name in columns if not self.columns or name in self.columns or name in key]

    def __str__(self) -> str:
        parts = [f"where {self.condition}"] if self.where is not None else []
        parts += [f"columns {', '.join(self.columns)}"] if self.columns else []
        return "; ".join(parts) or "all of it"


WHOLE = Selection()


def selection_of(where: str | None, columns: Sequence[str] | None) -> Selection:
    """Return the selection of ``where`` and ``columns``.

    :param where: see `core.filters.parser.parse`; None or empty: all rows.
    :param columns: None or empty: all columns.
    :raises ConfigurationError: the condition cannot be parsed, or ``columns`` is not a list of names.
    """
    if columns is not None and (isinstance(columns, str) or not all(_is_name(name) for name in columns)):
        raise ConfigurationError(
            f"{columns!r} is not a list of columns", where="columns", hint='give a list such as ["id", "status"]'
        )
    term = None
    if where:
        from airflow_provider_cdc.core.filters.parser import parse

        term = parse(where)
    return Selection(term, tuple(sorted({*(columns or ())})))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
