"""The dashboard and the alert rules use existing metrics, and a real backend receives the documented metrics."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from airflow_provider_cdc import errors
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.results import TableRead
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.metrics import METRICS
from harness.airflow_home import AirflowHome
from tests.runs import consolidate_result, delta_result, manifest_of, publish, snapshot_result

FOLDER = Path(__file__).parents[1] / "docs/monitoring"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
PANELS = json.loads((FOLDER / "grafana.json").read_text())["panels"]
MAPPINGS = yaml.safe_load((FOLDER / "statsd-mapping.yaml").read_text())["mappings"]
SENT = {
    metric.name: ["errors", "d", "s", "LogGone"] if metric.name == "errors" else [metric.name, "d", "s"]
    for metric in METRICS
}


def mapped(name: str) -> tuple[str, frozenset[str]]:
    """The metric and labels to which statsd_exporter maps a name."""
    for mapping in MAPPINGS:
        pattern = re.escape(mapping["match"]).replace(r"\*", r"([^.]+)")
        if found := re.fullmatch(pattern, name):
            filled = re.sub(r"\$(\d)", lambda at: found[int(at[1])], mapping["name"])
            return filled, frozenset(mapping.get("labels", {}))
    raise AssertionError(f"no rule for {name}")


KNOWN = {mapped(".".join(["airflow", "cdc", *parts])) for parts in SENT.values()}


def test_each_metric_has_a_name_of_its_own_in_prometheus() -> None:
    assert {name for name, _ in KNOWN} == {f"cdc_{metric.name}" for metric in METRICS}
    assert mapped("airflow.cdc.rows")[0] == "cdc_untagged"


ASKED = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("asked", ASKED)
def test_prometheus_can_read_every_expression(asked: str) -> None:
    # Grafana replaces its own variables by durations.
    shown = re.sub(r"\$__\w+", "1h", asked)
    found = set()

    def see(one: promql_parser.Expr) -> None:
        if isinstance(one, promql_parser.VectorSelector):
            found.add(one.name)

    promql_parser.walk(promql_parser.parse(shown), see)
    assert found == set(re.findall(r"\bcdc_\w+", asked))


@pytest.mark.parametrize("asked", ASKED)
def test_what_rules_and_panels_ask_for_is_there(asked: str) -> None:
    names = set(re.findall(r"\bcdc_\w+", asked))
    assert names
    assert names <= {name for name, _ in KNOWN}
    labels = set(re.findall(r"(\w+)(?:=~|!~|=)\"", asked)) | {
        label for group in re.findall(r"by \(([^)]*)\)", asked) for label in group.split(", ")
    }
    for name, own in KNOWN:
        if name in names:
            assert labels <= own


def test_every_metric_is_on_the_dashboard() -> None:
    shown = json.dumps(PANELS)
    assert all(f"cdc_{metric.name}" in shown for metric in METRICS)


@pytest.mark.slow
def test_the_errors_that_pages_are_for_are_those_that_a_retry_cannot_fix() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    transient = {kind.__name__ for kind in kinds if errors.TransientError in kind.__mro__[1:]}
    told = [set(names.split("|")) for rule in RULES for names in re.findall(r'error[!=]~"([^"]*)"', rule["expr"])]
    assert told == [transient, transient]


class _Collector(http.server.BaseHTTPRequestHandler):
    found: list[ExportMetricsServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.found.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[tuple[int, list[ExportMetricsServiceRequest]]]:
    handler: Any = type("Collector", (_Collector,), {"found": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, handler.found
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_backend_gets_the_numbers_of_a_run_and_its_errors(
    collector: tuple[int, list[ExportMetricsServiceRequest]], tmp_path: Path
) -> None:
    port, found = collector
    table = RunTable(Table(TableName("shop", "t"), (Column("id", "int", False),), ("id",)), "watermark", "")
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()), tables=(table,)))
    run.finish_step("snapshot", snapshot_result(900, tables={"shop.t": TableRead(900, 1, 1, 4096)}, seconds=2.5))
    run.finish_step("extract_delta", delta_result(7))
    done = {"rows": {"shop.t": 901}, "published": {"shop.t": "file:///x"}, "published_at": "2026-01-01T00:00:00+00:00"}
    publish(run, consolidate_result(**done))
    code = f"""
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.metrics import send_error, send_published
send_published(Run.load(Storage({run.folder.uri!r})), "my.dag", "shop eu")
send_error("LogGone", "my.dag", "shop eu")
send_error("LogGone", "my.dag", "")
"""
    environment = {
        **AirflowHome(tmp_path / "airflow", {}).environment,
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__OTEL_PORT": str(port),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=600)
    # What has not changed is sent again at the end.
    seen: dict[str, list[tuple[dict[str, str], float]]] = {}
    for request in found:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in [*metric.gauge.data_points, *metric.sum.data_points]:
                        own = {tag.key: tag.value.string_value for tag in point.attributes}
                        told = own, point.as_double or float(point.as_int)
                        if told not in seen.setdefault(metric.name, []):
                            seen[metric.name].append(told)
    tags = {"dag_id": "my.dag", "source": "shop eu"}
    assert seen["airflow.cdc.rows"] == [(tags, 901)]
    assert seen["airflow.cdc.rows.my_dag.shop_eu"] == [({}, 901)]
    assert seen["airflow.cdc.published_at_seconds"] == [(tags, 1767225600)]
    assert (tags | {"error": "LogGone"}, 1) in seen["airflow.cdc.errors"]
    assert ({"dag_id": "my.dag", "source": "none", "error": "LogGone"}, 1) in seen["airflow.cdc.errors"]
    assert {name.split(".")[2] for name in seen if name.startswith("airflow.cdc.")} == {
        metric.name for metric in METRICS
    }
