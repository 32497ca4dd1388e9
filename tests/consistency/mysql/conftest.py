"""Whether log files that lie side by side are read together, which small ones are: histories try both."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.sources.mysql.log import segments


@pytest.fixture(autouse=True)
def read_together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Read the log files of every other history together. Other tests do so only if they have the parameter."""
    cases = getattr(request.node, "callspec", None)
    together = bool(cases and cases.params.get("read_together", cases.params.get("seed", 1) % 2 == 0))
    if not together:
        monkeypatch.setattr(segments, "TOGETHER_BYTES", 0)
    return together
