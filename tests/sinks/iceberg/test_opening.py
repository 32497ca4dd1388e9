"""Several processes may open a new catalog at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks.iceberg.catalog import open_catalog


def test_another_process_creates_the_tables_of_the_catalog_first(tmp_path: Path) -> None:
    lake = Storage(tmp_path.as_uri())
    overtaken: list[str] = []

    def overtake(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "CREATE TABLE iceberg_tables" in statement and not overtaken:
            overtaken.append(statement)
            open_catalog(None, lake)

    event.listen(Engine, "before_cursor_execute", overtake)
    try:
        catalog = open_catalog(None, lake)
    finally:
        event.remove(Engine, "before_cursor_execute", overtake)
    assert overtaken
    assert catalog.list_namespaces() == []
