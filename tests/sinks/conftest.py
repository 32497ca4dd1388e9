"""The lakes of the sink tests: every format, on a disk and on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks.registry import SINKS
from harness.s3_server import s3_environment
from tests.sinks.test_contract import Lake


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "disk":
        return Storage(tmp_path.as_uri())
    for name, value in s3_environment(request.getfixturevalue("s3")).items():
        monkeypatch.setenv(name, value)
    return Storage(f"s3://lake/{tmp_path.name}")


@pytest.fixture(params=sorted(SINKS))
def lake(request: pytest.FixtureRequest, storage: Storage) -> Lake:
    return Lake(request.param, storage)
