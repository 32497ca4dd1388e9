"""The catalogs of the Iceberg tables of tests: in a file on a disk, and SeaweedFS's own on S3."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks.registry import CatalogSettings
from harness.s3_server import ADMIN

PAGE = Path(__file__).parents[2] / "docs/cuts.md"
CATALOG, WAREHOUSE = "CDC_TEST_CATALOG", "CDC_TEST_WAREHOUSE"
"""The environment variables with the address of SeaweedFS's catalog, and the bucket of its tables."""


def _s3_properties() -> dict[str, str]:
    key, secret = ADMIN
    return {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": key,
        "s3.secret-access-key": secret,
        "s3.region": "us-east-1",
    }


def settings_of_catalog(lake: Storage) -> CatalogSettings | None:
    """What the sink of a lake needs to know of its catalog."""
    if not lake.uri.startswith("s3:"):
        return None
    key, secret = ADMIN
    return CatalogSettings(
        "rest",
        os.environ[CATALOG],
        os.environ[WAREHOUSE],
        login=key,
        password=secret,
        properties=_s3_properties(),
    )


def plain_catalog(lake: Storage) -> Catalog:
    """The catalog of a lake, opened without this package."""
    if not lake.uri.startswith("s3:"):
        return load_catalog("default", type="sql", uri=f"sqlite:///{lake.path('_catalog.db')}", warehouse=lake.uri)
    key, secret = ADMIN
    return load_catalog(
        "plain",
        type="rest",
        uri=os.environ[CATALOG],
        warehouse=os.environ[WAREHOUSE],
        credential=f"{key}:{secret}",
        **_s3_properties(),
    )


def spark_catalog(lake: Storage) -> dict[str, str]:
    """Spark's properties for the catalog in a lake on a disk, as the documentation has them."""
    (block,) = re.findall(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(line.replace("/data/lake", lake.path()).split() for line in block.splitlines())
