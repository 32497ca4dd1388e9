"""The request of a verification, which is made from the arguments of the operator or of the command, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_cdc.core.options.lake import FORMATS, LakeOptions
from airflow_provider_cdc.core.options.run import AS_DECLARED, TEXT, UNREPRESENTABLE, TableOptions
from airflow_provider_cdc.core.positions.as_of import is_as_of, text_of
from airflow_provider_cdc.errors import ConfigurationError

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
class VerifyRequest:
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


_OF_A_COPY = [one.name for one in fields(CopyAsked) if one.name != "table"]


def request_of(
    id: str,
    *,
    what: str = SOURCE,
    tables: Sequence[str] = (),
    copies: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    target: str = "",
    scratch: str = "",
    source_conn_id: str = "",
    at: str = "",
    since: str = "",
    lag_seconds: int | str | None = None,
    ranges: int | str = RANGES,
    range_rows: int | str = 20_000,
    seed: int | str = 0,
    shown: int | str = 100,
    standing_slot: str = "",
    unrepresentable: str = "error",
    arrays: str = TEXT,
    format: str = "parquet",
    catalog_conn_id: str = "",
    table_name: str = "{schema}.{table}",
) -> VerifyRequest:
    """Return the request that the arguments describe. `VerifyOperator` documents the arguments.

    :raises ConfigurationError: an argument is not accepted.
    """
    _check("what", what, WHAT)
    _check("format", format, FORMATS)
    _check("unrepresentable", unrepresentable, UNREPRESENTABLE)
    asked = [*(CopyAsked(table) for table in tables), *(_copy(*item, "copies") for item in (copies or {}).items())]
    if not asked:
        raise _wrong("tables", "no table is named", "name tables with copies in the target, or other copies in copies")
    names = [one.table for one in asked]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise _wrong("tables", f"{min(repeated)} is named twice", "name each table once")
    if not target and any(not one.uri for one in asked):
        raise _wrong("target", "it is empty", "give the folder in which the copies were published")
    given = others or {}
    if what == COPIES and (without := set(names) ^ set(given)):
        raise _wrong("others", f"{min(without)} is not in both copies and others", "name two copies of each table")
    if what == FILES and any(one.uri for one in asked):
        raise _wrong("copies", "only copies of this package have a record of their files", "name them in tables")
    lag = -1 if lag_seconds in (None, "") else _count("lag_seconds", lag_seconds)
    known = [name for name, value in (("at", at), ("since", since), ("lag_seconds", lag >= 0)) if value]
    if len(known) > 1:
        raise _wrong(known[1], f"it contradicts {known[0]}", "give one of at, since and lag_seconds")
    for name, moment in (("at", at), ("since", since)):
        if not is_as_of(moment):
            raise _wrong(name, f"{moment!r} is neither a time with its zone nor a position", "write 2026-01-31T00:00Z")
    return VerifyRequest(
        what=what,
        id=id,
        copies=tuple(asked),
        target=target,
        scratch=scratch,
        others=tuple(_copy(one.table, given[one.table], "others") for one in asked) if what == COPIES else (),
        source_conn_id=source_conn_id,
        at=text_of(at),
        since=text_of(since),
        lag_seconds=lag,
        ranges=_count("ranges", ranges),
        range_rows=max(1, _count("range_rows", range_rows)),
        seed=_count("seed", seed),
        shown=_count("shown", shown),
        standing_slot=standing_slot,
        table=TableOptions(unrepresentable=unrepresentable, arrays=arrays),
        lake=LakeOptions(format=format, catalog_conn_id=catalog_conn_id, table_name=table_name),
    )


def _copy(table: str, given: Any, argument: str) -> CopyAsked:
    values: Any = {"uri": given} if isinstance(given, str) else given
    if not isinstance(values, Mapping) or (unknown := set(values) - set(_OF_A_COPY)):
        what = f"{min(unknown)} is not known" if isinstance(values, Mapping) else f"{given!r} does not name a copy"
        raise _wrong(f"{argument}, {table}", what, f"give a URI, or an object with {', '.join(_OF_A_COPY)}")
    lists = {name: tuple(values.get(name) or ()) for name in ("selected", "key")}
    return CopyAsked(
        table, str(values.get("uri") or ""), dict(values.get("columns") or {}), str(values.get("where") or ""), **lists
    )


def _count(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise _wrong(name, f"{value!r} is not a whole number of at least 0", "give a number such as 59")
    return number


def _check(name: str, value: str, accepted: Sequence[str]) -> None:
    if value not in accepted:
        raise _wrong(name, f"{value!r} is not accepted", f"choose one of {', '.join(accepted)}")


def _wrong(name: str, what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(what, where=f"parameter {name}", hint=hint)
