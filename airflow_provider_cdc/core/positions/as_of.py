"""The values of ``as_of``: a time, or a position of the source."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

from airflow_provider_cdc.core.positions.kinds import KINDS
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.errors import PositionError

AsOf = datetime | Position

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
INTERVAL_END = "{{ data_interval_end if data_interval_end is defined else dag_run.run_after }}{# supplied #}"
"""The end of the run's data interval, as a template. A run that was triggered manually may have no data interval.

The DAG `nightly` uses this template if the user's file has no ``as_of``. The comment in the template distinguishes it
from the same template in a user's file, because ``missing_past`` does not apply to a template from a user's file.
"""


def parse(text: str) -> AsOf | None:
    """Parse an ISO 8601 timestamp with a zone, a date, a GTID set, or an LSN; None: the text is empty, which means now.

    A date means 00:00 UTC of that day.

    :raises PositionError: the text is none of these.
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
            f"{text!r} has no time zone, so it is not a point in time",
            hint=f"write the time with a zone, such as {when.isoformat()}Z or {when.isoformat()}+02:00",
        )
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise PositionError(
            f"{text!r} is outside the years 1 to 9999 in UTC", hint="give a time that the source's log still covers"
        ) from None


def reaches(later: Position, earlier: Position) -> bool:
    """Return whether ``later`` includes all of ``earlier``, a position of the same source.

    :raises PositionError: the positions are of different kinds of sources.
    """
    if type(earlier) is not type(later):
        raise PositionError(
            f"{str(earlier)[:100]!r} and {str(later)[:100]!r} are positions of different kinds of sources",
            hint="compare positions of one source",
        )
    return earlier <= later


def text_of(value: Any) -> Any:
    """Return the option's value as text; a template may have rendered a datetime.

    A date becomes the time 00:00 UTC of that day, so records show how the date was interpreted.
    """
    if isinstance(value, date):
        value = value.isoformat()
    if isinstance(value, str) and _DATE.fullmatch(value.strip()):
        with suppress(ValueError):
            return datetime.fromisoformat(value.strip()).replace(tzinfo=UTC).isoformat()
    return value


def is_as_of(value: Any) -> bool:
    """Return whether `parse` accepts the value's text."""
    text = text_of(value)
    if not isinstance(text, str):
        return False
    try:
        parse(text)
    except PositionError:
        return False
    return True


def parse_position(text: str) -> Position:
    """Parse a GTID set or an LSN, of any kind of source. An empty set is rejected.

    :raises PositionError: the text is neither.
    """
    for kind in KINDS.values():
        try:
            position = kind.parse(text)
        except PositionError:
            continue
        # A lone comma is an empty GTID set, as on the server.
        if position:
            return position
    raise PositionError(
        f"{text[:200]!r} is not a time, date, GTID set or LSN",
        hint="write a time as 2026-01-31T00:00:00Z, a date as 2026-01-31, a GTID set as the server prints it, an LSN "
        "as 16/B374D848",
    )
