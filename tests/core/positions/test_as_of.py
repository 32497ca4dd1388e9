"""Values of `as_of`: a date without a time is one point, whatever the time zone of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

from airflow_provider_cdc.core.options.declare import AS_OF
from airflow_provider_cdc.core.positions.as_of import is_as_of, parse, text_of
from airflow_provider_cdc.errors import PositionError


@pytest.fixture(params=["UTC", "Pacific/Kiritimati", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("given", ["2026-03-29", " 2026-03-29\n", date(2026, 3, 29)])
def test_a_date_is_its_beginning_in_utc(zone: str, given: str | date) -> None:
    assert is_as_of(given)
    # The record has the complete form.
    assert AS_OF.plain(given) == "2026-03-29T00:00:00+00:00"
    assert parse(AS_OF.plain(given)) == datetime(2026, 3, 29, tzinfo=UTC)
    if isinstance(given, str):
        assert parse(given) == datetime(2026, 3, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["2026-02-30", "20260329", "2026-W13-7", "29.03.2026", "2026-3-29", "2026-03-29T00:00"]
)
def test_what_could_be_another_day_or_another_hour_is_refused(text: str) -> None:
    assert text_of(text) == text
    with pytest.raises(PositionError):
        parse(text)
