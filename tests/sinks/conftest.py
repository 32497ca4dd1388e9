"""The lakes of the sink tests: every format, on a disk and on an object store."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks.registry import SINKS
from harness.s3_server import make_catalog, s3_environment
from tests.sinks.catalogs import CATALOG, WAREHOUSE
from tests.sinks.test_contract import Lake


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "disk":
        return Storage(tmp_path.as_uri())
    endpoint = request.getfixturevalue("s3")
    for name, value in s3_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    if "iceberg" in request.node.name:
        bucket = f"tables-{uuid.uuid4().hex[:12]}"
        monkeypatch.setenv(CATALOG, make_catalog(endpoint, bucket))
        monkeypatch.setenv(WAREHOUSE, f"s3://{bucket}")
    return Storage(f"s3://lake/{tmp_path.name}")


@pytest.fixture(params=sorted(SINKS))
def lake(request: pytest.FixtureRequest, storage: Storage) -> Lake:
    return Lake(request.param, storage)
