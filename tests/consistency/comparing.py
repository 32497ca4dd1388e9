"""Compares published tables with the expected rows, and with each other bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from tests.core.digest import recompute


def assert_same_rows(where: str, copied: Counter[Any], truth: Counter[Any]) -> None:
    """Compare two multisets of rows; the failure message has ``where``."""
    missing, extra = truth - copied, copied - truth
    assert not missing, f"{where}: missing {list(missing)[:3]}, instead {list(extra)[:3]}"
    assert not extra, f"{where}: extra {list(extra)[:3]}"


def assert_same_copies(found: Mapping[str, str], wanted: Mapping[str, str], what: str) -> None:
    """Make sure that copies, given by their tables' names and URIs, are of the same tables and have the same rows.
    Their certificates have the digest that the documented script computes from the files."""
    assert found.keys() == wanted.keys()
    for name in found:
        assert sorted(contents(found[name])) == sorted(contents(wanted[name])), f"{what}, {name}"
        certified, other = (certificate(copies[name]) for copies in (found, wanted))
        assert certified["digest"] == other["digest"] != "", f"{what}, {name}"
        folder = Storage(found[name])
        for file in certified["files"]:
            rows = pq.read_table(folder.path(file["name"]))
            assert recompute.digest(rows) == (file["rows"], file["digest"]), f"{what}, {name}, {file['name']}"


def certificate(uri: str) -> Any:
    """The certificate of a copy, as JSON data."""
    table, _, run_id = uri.rpartition("/snapshot=")
    return Storage(table).read_json(f"_certificates/{run_id}.json")


def contents(uri: str) -> list[bytes]:
    """The bytes of all rows of a copy."""
    folder = Storage(uri)
    found: list[bytes] = []
    for name in folder.files():
        for batch in pq.read_table(folder.path(name)).combine_chunks().to_batches():
            found += row_bytes.encode(batch, batch.schema.names).to_pylist()
    return found
