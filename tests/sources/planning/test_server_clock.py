"""A run that its scheduler starts on time is not rejected because the server's clock is slightly behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.planning.survey import SKEW, wait_for_clock


def test_a_clock_that_is_a_little_behind_is_waited_for_and_another_one_is_not() -> None:
    def server_time() -> datetime:
        return datetime.now(UTC) - timedelta(seconds=1)

    as_of = datetime.now(UTC)
    wait_for_clock(as_of, server_time)
    assert server_time() >= as_of
    with pytest.raises(PreflightError, match="is in the future"):
        wait_for_clock(server_time() + SKEW + timedelta(seconds=5), server_time)
