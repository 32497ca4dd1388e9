"""What a run may be asked to be exact at: a time, or a position of its source."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

from airflow_provider_cdc.core.kinds import KINDS
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.errors import PositionError

AsOf = datetime | Position

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
INTERVAL_END = "{{ data_interval_end if data_interval_end is defined else dag_run.run_after }}{# supplied #}"
"""The end of the run's interval, as a template; a run that was triggered by hand may have none.

The DAG `nightly` supplies it where the file has no ``as_of``. The comment tells it from the same template that a user
wrote: only of what nobody wrote, ``missing_past`` decides what happens where it cannot be met.
"""


def parse(text: str) -> AsOf | None:
    """Read an ISO 8601 timestamp with a zone, a date, a GTID set, or an LSN; None: the text is empty, which means now.

    A date is its beginning in UTC.

    :raises PositionError: it is none of these.
    """
    text = text_of(text)
    if not text.strip():
        return None
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return parse_position(text)
    if when.tzinfo is None:
        raise PositionError(
            f"{text!r} has no zone, so it is no point in time",
            hint=f"write it with one, such as {when.isoformat()}Z or {when.isoformat()}+02:00",
        )
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise PositionError(
            f"{text!r} is beyond the years 1 to 9999 in UTC", hint="give a time that the source's log reaches back to"
        ) from None


def reaches(later: Position, earlier: Position) -> bool:
    """Whether a position has all of another one of the same source.

    :raises PositionError: they are of two kinds of sources.
    """
    if type(earlier) is not type(later):
        raise PositionError(
            f"{str(earlier)[:100]!r} and {str(later)[:100]!r} are positions of two kinds of sources",
            hint="compare positions of one source",
        )
    return earlier <= later


def text_of(value: Any) -> Any:
    """The option's value as text: a template may have made a time of it. A date is completed to its beginning in UTC:
    what is recorded shows what it was taken for."""
    if isinstance(value, date):
        value = value.isoformat()
    if isinstance(value, str) and _DATE.fullmatch(value.strip()):
        with suppress(ValueError):
            return datetime.fromisoformat(value.strip()).replace(tzinfo=UTC).isoformat()
    return value


def is_as_of(value: Any) -> bool:
    """Whether `parse` reads the value's text."""
    text = text_of(value)
    if not isinstance(text, str):
        return False
    try:
        parse(text)
    except PositionError:
        return False
    return True


def parse_position(text: str) -> Position:
    """Read a GTID set or an LSN, of whichever kind of source; an empty set is none.

    :raises PositionError: it is neither.
    """
    for kind in KINDS.values():
        try:
            position = kind.parse(text)
        except PositionError:
            continue
        # A lone comma is a GTID set to the server, too: one that names nothing.
        if position:
            return position
    raise PositionError(
        f"{text[:200]!r} is no time, date, GTID set or LSN",
        hint="write a time as 2026-01-31T00:00:00Z, a date as 2026-01-31, a GTID set as the server prints it, an LSN "
        "as 16/B374D848",
    )
