"""The layout of a table of the lake: its partitioning, and the order of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.errors import ConfigurationError

IDENTITY, BUCKET, TRUNCATE = "identity", "bucket", "truncate"
PERIODS = ("year", "month", "day", "hour")

_PARTITION_EXAMPLE = "write country, day(created), bucket(16, id) or truncate(4, name)"
_WITH_COLUMN = re.compile(rf"\s*({'|'.join((IDENTITY, *PERIODS))})\s*\((.+)\)\s*", re.DOTALL)
_WITH_NUMBER = re.compile(rf"\s*({BUCKET}|{TRUNCATE})\s*\(\s*([1-9]\d{{0,8}})\s*,(.+)\)\s*", re.DOTALL)
_SORT = re.compile(r"\s*(.+?)(?:\s+(asc|desc))?\s*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class PartitionField:
    """One field of a partitioning: a transform of a column. ``number`` is the argument of ``bucket`` and
    ``truncate``."""

    transform: str
    column: str
    number: int = 0

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.column
        number = f"{self.number}, " if self.number else ""
        return f"{self.transform}({number}{self.column})"


@dataclass(frozen=True)
class SortField:
    """One column of a table's sort order."""

    column: str
    descending: bool = False


@dataclass(frozen=True)
class Layout:
    """The layout of a table. If ``partition`` is empty, the table is not partitioned. If ``sort`` is empty, the rows
    have no order."""

    partition: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = ()


PLAIN = Layout()


def layout_of(partition_by: Sequence[str], sort_by: Sequence[str]) -> Layout:
    """Parse the values of the options ``partition_by`` and ``sort_by`` for one table.

    :raises ConfigurationError: a text is not a valid partition field or sort field, or two texts name the same field.
    """
    partition = tuple(map(_partition_field, partition_by))
    if len({str(field) for field in partition}) < len(partition):
        raise ConfigurationError("it names a field twice", hint="name each field once")
    sort = tuple(map(_sort_field, sort_by))
    if len({field.column for field in sort}) < len(sort):
        raise ConfigurationError("it names a column twice", hint="name each column once")
    return Layout(partition, sort)


def _partition_field(text: str) -> PartitionField:
    if found := _WITH_NUMBER.fullmatch(text):
        return PartitionField(found[1], found[3].strip(), int(found[2]))
    if found := _WITH_COLUMN.fullmatch(text):
        return PartitionField(found[1], found[2].strip())
    if re.match(r"\s*\w+\s*\(", text):
        raise ConfigurationError(f"{text!r} is not a transform of a column", hint=_PARTITION_EXAMPLE)
    return PartitionField(IDENTITY, text.strip())


def _sort_field(text: str) -> SortField:
    found = _SORT.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{text!r} does not name a column", hint="write created, or created desc")
    return SortField(found[1], (found[2] or "").lower() == "desc")
