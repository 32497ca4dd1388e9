"""What a verification is asked to do, and what it found. Both are records in the folder of the verification."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.options.run import AS_DECLARED, TableOptions

FOLDER = "_verify"
"""The folder in the target with a folder for each verification."""
REQUEST, RESULT, MARKDOWN = "request.json", "result.json", "result.md"
SOURCE, FILES, COPIES = "source", "files", "copies"
WHAT = (SOURCE, FILES, COPIES)
SAME, DIFFERENT, NOT_VERIFIED = "same", "different", "not verified"
RANGES = 59
"""The number of ranges in a sample. If 5 % of the ranges of a table have a fault, such a sample finds one of them with
a chance of 95 %."""


@dataclass(frozen=True)
class CopyAsked:
    """A copy of one table.

    ``uri`` names the copy: a file or a folder of Parquet files, a CSV file, or ``iceberg:namespace.table``, with the id
    of a snapshot after ``@``. It is empty for the latest copy in the target. ``columns`` maps columns of the table to
    columns of the copy; columns that are not in it have the same name. ``where`` and ``selected`` are the part of the
    table that was copied. ``key`` has the columns of the key, if they are unknown.
    """

    table: str
    uri: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    where: str = ""
    selected: tuple[str, ...] = ()
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """A verification.

    ``what`` is one of `WHAT`. ``others`` are the copies with which ``copies`` are compared, in the same order. ``at``
    is the position or time at which the copies are exact; empty: their own position. With ``since``, the copies are
    exact at an unknown position after this position or time. With ``lag_seconds`` of at least 0, the copies follow the
    source, and are at most so many seconds behind it. ``ranges`` is the size of the sample; 0: all rows.
    ``range_rows`` is the approximate number of rows of a range. ``shown`` is the greatest number of differing keys that
    are named for a table.
    """

    what: str
    id: str
    copies: tuple[CopyAsked, ...]
    target: str = ""
    scratch: str = ""
    others: tuple[CopyAsked, ...] = ()
    source_conn_id: str = ""
    at: str = ""
    since: str = ""
    lag_seconds: int = -1
    ranges: int = RANGES
    range_rows: int = 20_000
    seed: int = 0
    shown: int = 100
    standing_slot: str = ""
    table: TableOptions = AS_DECLARED
    lake: LakeOptions = field(default_factory=LakeOptions)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of the throw-away runs that the verification may make, at most one for each copy."""
        return (self.id, *(f"{self.id}-{number}" for number in range(1, len(self.copies))))

    @property
    def leaves_out(self) -> bool:
        """Whether touched keys are left out, because the position of the copies is not known exactly."""
        return bool(self.since) or self.lag_seconds >= 0


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ. For a table without a key, ``key`` is the whole row.

    ``kind`` says how: ``missing``, ``extra``, ``changed``, or ``repeated`` (another number of rows). ``left`` are the
    rows in the source, or in the first copy. ``right`` are the rows in the copy. Values are text; None is a null.
    ``counts`` are the numbers of rows, of which only a few are listed. ``columns`` are the columns that differ.
    """

    kind: str
    key: dict[str, str | None]
    left: tuple[dict[str, str | None], ...] = ()
    right: tuple[dict[str, str | None], ...] = ()
    counts: tuple[int, int] = (0, 0)
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableResult:
    """The result for one table.

    ``outcome`` is `SAME`, `DIFFERENT` or `NOT_VERIFIED`, and ``why`` is the reason for the last two. ``rows`` are the
    rows that were compared, on the left and on the right. ``keys_left_out`` is the number of keys that were touched
    meanwhile and are not verified. ``ranges`` are the ranges that were read, and all ranges; both are 0 if all rows
    were compared. ``confidence`` states what a sample can find. ``keys_differing`` is the number of differing keys that
    were found, of which ``differences`` names the first. ``parts_unsearched`` is the number of parts of the table that
    differ, too, but were not searched for their keys. ``damaged`` describes files that are damaged, missing or extra.
    """

    table: str
    outcome: str
    why: str = ""
    position: str = ""
    rows: tuple[int, int] = (0, 0)
    digests: tuple[str, str] = ("", "")
    keys_left_out: int = 0
    ranges: tuple[int, int] = (0, 0)
    confidence: str = ""
    differences: tuple[Difference, ...] = ()
    keys_differing: int = 0
    parts_unsearched: int = 0
    columns_left_out: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    files: int = 0


@dataclass(frozen=True)
class VerifyResult:
    """The result of a verification."""

    id: str
    what: str
    began_at: str
    tables: tuple[TableResult, ...]
    left: str = "source"
    right: str = "copy"
    seconds: float = 0.0

    def of(self, outcome: str) -> list[TableResult]:
        return [one for one in self.tables if one.outcome == outcome]
