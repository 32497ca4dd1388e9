"""Makes the request of a verification from the arguments of the operator or of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from airflow_provider_cdc.core.options.lake import FORMATS, LakeOptions
from airflow_provider_cdc.core.options.run import TEXT, UNREPRESENTABLE, TableOptions
from airflow_provider_cdc.core.positions.as_of import is_as_of, text_of
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.verify.request import COPIES, FILES, RANGES, SOURCE, WHAT, CopyAsked, Request

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
) -> Request:
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
    return Request(
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
