"""Which part of a table a run copies: the rows for which a condition holds, and some of its columns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.core.filters.syntax import Term
from airflow_provider_cdc.errors import ConfigurationError

_DIGITS = 16


@dataclass(frozen=True)
class Selection:
    """Part of a table: the rows for which ``where`` holds (None: all), and the ``columns`` that were asked for, sorted
    (none: all). What is published has the columns of the key, too."""

    where: Term | None = None
    columns: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it is all of the table."""
        return self.where is None and not self.columns

    @property
    def condition(self) -> str:
        """The condition, in the one way of writing it down; empty: all rows."""
        return "" if self.where is None else str(self.where)

    @property
    def part(self) -> str:
        """A digest of it, the same for what says the same; empty: all of the table."""
        if self.whole:
            return ""
        # Lengths, so that no name can pass for two.
        parts = [self.condition, *self.columns]
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    def published(self, columns: Sequence[str], key: Sequence[str]) -> list[str]:
        """Those of a table's ``columns`` that are published, in their order."""
        return [name for name in columns if not self.columns or name in self.columns or name in key]

    def __str__(self) -> str:
        parts = [f"where {self.condition}"] if self.where is not None else []
        parts += [f"columns {', '.join(self.columns)}"] if self.columns else []
        return "; ".join(parts) or "all of it"


WHOLE = Selection()


def selection_of(where: str | None, columns: Sequence[str] | None) -> Selection:
    """What ``where`` and ``columns`` say.

    :param where: see `condition_text.parse`; None or empty: all rows.
    :param columns: None or empty: all columns.
    :raises ConfigurationError: the condition cannot be read, or ``columns`` is no list of names.
    """
    if columns is not None and (isinstance(columns, str) or not all(_is_name(name) for name in columns)):
        raise ConfigurationError(
            f"{columns!r} is no list of columns", where="columns", hint='give a list such as ["id", "status"]'
        )
    term = None
    if where:
        from airflow_provider_cdc.core.filters.parser import parse

        term = parse(where)
    return Selection(term, tuple(sorted({*(columns or ())})))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
