"""The effects of a log on tables, in tests: rows as SELECT returns them."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Table

Row = tuple[Any, ...]
Decoder = Callable[[Table, pa.BinaryArray], pa.RecordBatch]


@dataclass
class Changes:
    """``before`` by table and key, ``counts`` by keyless table and row; ``after`` as ``before``, of what is read
    forward."""

    before: dict[str, dict[bytes, Row | None]] = field(default_factory=dict)
    after: dict[str, dict[bytes, Row | None]] = field(default_factory=dict)
    counts: dict[str, Counter[Row]] = field(default_factory=dict)

    def take(self, table: Table, changes: Iterable[Mapping[str, Any]], decode: Decoder) -> None:
        """Add ``changes`` of ``table``, rows of ``DELTA_SCHEMA`` in the order of the log.

        :param decode: the source's ``decode_images``.
        """
        changes = list(changes)
        images, lasts = (
            iter(_rows(decode, table, [row[which] for row in changes if row[which] is not None]))
            for which in ("before", "after")
        )
        for row in changes:
            before = None if row["before"] is None else next(images)
            if table.keyless:
                assert before is not None
                counts = self.counts.setdefault(table.name.name, Counter())
                counts[before] += row["count"]
            else:
                self.before.setdefault(table.name.name, {}).setdefault(row["key"], before)
                last = None if row["after"] is None else next(lasts)
                self.after.setdefault(table.name.name, {})[row["key"]] = last


def _rows(decode: Decoder, table: Table, images: list[bytes]) -> list[Row]:
    batch = decode(table, pa.array(images, pa.binary()))
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) if images else []


def key(*values: int | str) -> bytes:
    """The key of columns of 32-bit integers and of text, as ``core.row_bytes`` encodes it."""
    parts = []
    for value in values:
        if isinstance(value, int):
            parts.append(b"\x01" + struct.pack("<i", value))
        else:
            data = value.encode()
            parts.append(b"\x01" + struct.pack("<I", len(data)) + data)
    return b"".join(parts)
