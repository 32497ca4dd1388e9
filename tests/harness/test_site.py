"""``dev/airflow``: the same ports after a restart, reports that a browser can open, an example that reads copies."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.links.report import ReportLink
from harness.server_process import free_port
from harness.site.__main__ import EXAMPLES
from harness.site.file_server import serving
from harness.site.kept_ports import KeptPorts


def test_ports_are_the_same_after_a_restart_and_another_is_taken_where_one_is_not_free(tmp_path: Path) -> None:
    said: list[str] = []
    first, preferred = KeptPorts(tmp_path / "ports.json", said.append), free_port()
    ports = {"UI": first.port("UI", preferred), "metadata": first.port("metadata")}
    assert ports["UI"] == preferred
    again = KeptPorts(tmp_path / "ports.json", said.append)
    # What was preferred counts only the first time.
    assert {"UI": again.port("UI", 1), "metadata": again.port("metadata")} == ports
    assert not said
    with socket.socket() as other:
        other.bind(("127.0.0.1", preferred))
        other.listen()
        moved = KeptPorts(tmp_path / "ports.json", said.append).port("UI", preferred)
    assert moved != preferred
    assert said == [f"port {preferred} (UI) is in use by another program: using {moved} from now on"]
    assert KeptPorts(tmp_path / "ports.json", said.append).port("UI", preferred) == moved


def test_the_link_of_a_report_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Storage((tmp_path / "my lake").as_uri())
    report = lake.folder("cdc_mysql", "_runs", "20260101T000000Z-00000000")
    report.write_text("report.html", "<p>exact</p>")
    with serving(tmp_path / "my lake", free_port()) as address:
        monkeypatch.setenv("AIRFLOW__CDC__REPORT_URLS", f"{lake.uri}={address}")
        link = ReportLink().get_link(SimpleNamespace(report_uri=report.uri_of("report.html")), ti_key=None)
        assert link.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(link, timeout=30) as answer:
            assert answer.read() == b"<p>exact</p>"
            assert answer.headers["Content-Type"].startswith("text/html")


def test_the_example_is_a_dag_that_runs_for_copies_of_either_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CDC__TARGETS", f"{tmp_path.as_uri()}/{{source}}")
    monkeypatch.setenv("AIRFLOW__CDC__PRODUCTION_TARGETS", tmp_path.as_uri())
    bag = DagBag(EXAMPLES)
    assert not bag.import_errors
    assert set(bag.dags["read_copies"].task_ids) == {"with_pyarrow", "with_duckdb", "with_pandas", "with_spark"}
    asked = json.dumps(str(bag.dags["read_copies"].schedule))
    assert "x-cdc://cdc_mysql/shop/accounts" in asked
    assert "x-cdc://cdc_postgres/shop/accounts" in asked
