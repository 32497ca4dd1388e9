from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from tests.sinks.test_contract import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("iceberg", Storage(tmp_path.as_uri()))
