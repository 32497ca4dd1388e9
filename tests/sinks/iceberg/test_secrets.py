"""Nothing that Spark tasks get, and nothing that is shown, holds the secrets of a catalog."""

from __future__ import annotations

import pickle

import pyarrow as pa

from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.run.table_files import TableFileWriter
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, CheckFiles
from airflow_provider_cdc.sinks.base import Prepared
from airflow_provider_cdc.sinks.iceberg.catalog import properties_of
from airflow_provider_cdc.sinks.registry import CatalogSettings, LakeSettings, open_sink
from tests.sinks.test_contract import ORDERS, Lake

SECRETS = ("s3cret-horse", "t0ken", "AKIAADMIN")
SETTINGS = CatalogSettings(
    "sql", "sqlite://", "", login="me", password=SECRETS[0], properties={"token": SECRETS[1], "s3.key": SECRETS[2]}
)


def test_settings_do_not_show_them() -> None:
    shown = repr(SETTINGS) + str(SETTINGS) + repr(LakeSettings("iceberg", SETTINGS))
    assert not [secret for secret in SECRETS if secret in shown]
    assert SECRETS[1] in str(properties_of(SETTINGS))


def test_what_tasks_get_does_not_hold_them(lake: Lake) -> None:
    settings = CatalogSettings(
        "sql",
        f"sqlite:///{lake.storage.path('secret.db')}",
        lake.storage.uri,
        properties={"token": SECRETS[1], "s3.secret-access-key": SECRETS[0], "s3.access-key-id": SECRETS[2]},
    )
    sink = open_sink(LakeSettings("iceberg", settings), lake.storage)
    table = Prepared(ORDERS, pa.schema([("id", pa.int64())]))
    place = sink.prepare("run", [table])[TableName("shop", "orders")]
    files = TableFileWriter(
        Staging(Storage(place.folder)), table.published, place.schema(table.published), "t", "run", _key="id"
    )
    (file,) = lake.stage(5).tables[0].added[:1]
    sent = pickle.dumps(
        [place, files, CheckFiles(lake.scratch), Checked(file, "x", files.folder, sink.folders("r", ORDERS))]
    )
    assert not [secret for secret in SECRETS if secret.encode() in sent]
    assert b"secret.db" not in sent
