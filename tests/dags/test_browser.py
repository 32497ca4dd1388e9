"""What a person does in Airflow's UI, in a real browser, and the same by the REST API.

Fills in the form, looks at the plan, copies, reads the report, tests connections. Pictures are kept in the folder that
the test prints."""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.airflow_home import AirflowHome
from harness.airflow_server import running_airflow
from harness.browser import Browser, open_browser
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.server_process import free_port
from tests.dags.watching import STEPS

ROWS = 60_000
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@dataclass
class Site:
    """An Airflow that is running, with its connections in its database, as people have them."""

    url: str
    check: Callable[[], None]
    schema: str
    lake: Path
    token: str = ""

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer of the REST API."""
        self.check()
        request = urllib.request.Request(f"{self.url}{path}", method="GET" if body is None else "POST")
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def log_in(self) -> None:
        status, answer = self.ask("/auth/token")
        assert status in (200, 201), answer
        self.token = answer["access_token"]

    def trigger(self, dag_id: str, **conf: Any) -> tuple[int, Any]:
        return self.ask(f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})

    def wait_for_dag(self, dag_id: str) -> None:
        deadline = time.monotonic() + 300
        while self.ask(f"/api/v2/dags/{dag_id}")[0] != 200:
            assert time.monotonic() < deadline, "the DAG was not found"
            time.sleep(2)

    def last_run(self, dag_id: str) -> Any:
        _, answer = self.ask(f"/api/v2/dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")
        return answer["dag_runs"][0]

    def wait_for_end(self, dag_id: str) -> tuple[str, dict[str, str]]:
        """The state of the last run, and that of each task, once it has ended."""
        deadline = time.monotonic() + 900
        while (run := self.last_run(dag_id))["state"] not in ("success", "failed"):
            assert time.monotonic() < deadline, run
            time.sleep(2)
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run['dag_run_id']}/taskInstances"
        instances = self.ask(path)[1]["task_instances"]
        return run["state"], {one["task_id"]: one["state"] for one in instances}


@pytest.fixture(scope="module")
def site(mysql: MysqlServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    schema = "browsed"
    mysql.query(f"CREATE DATABASE {schema}")
    mysql.query(f"CREATE TABLE {schema}.orders (id INT AUTO_INCREMENT PRIMARY KEY, at DATETIME DEFAULT NOW())")
    mysql.query("SET SESSION cte_max_recursion_depth = 1000000")
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
    for _ in range(ROWS // 1000):
        mysql.query(f"INSERT INTO {schema}.orders (id) {numbers} SELECT NULL FROM n")
    airflow = AirflowHome(folder / "airflow", {})
    airflow.environment |= {
        "AIRFLOW__CDC__SOURCE_CONN_IDS": "cdc_mysql cdc_postgres",
        "AIRFLOW__CDC__REPORT_URLS": f"{(folder / 'lake').as_uri()}=https://files.example.com",
        "AIRFLOW__CDC__TARGETS": (folder / "lake").as_uri(),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    }
    airflow.prepare()
    connections = {
        "cdc_mysql": {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"},
        "cdc_postgres": {
            "conn_type": "cdc_postgres",
            "host": postgres.host,
            "port": postgres.port,
            "login": SUPERUSER,
            "schema": "postgres",
        },
    }
    airflow.add_connections(connections)
    port = free_port()
    with running_airflow(airflow, port) as check:
        found = Site(f"http://127.0.0.1:{port}", check, schema, folder / "lake")
        found.log_in()
        for dag_id in ("backfill", "mysql_snapshot"):
            found.wait_for_dag(dag_id)
        yield found
    mysql.query(f"DROP DATABASE {schema}")


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    # Not a folder of pytest's, which removes those of older runs.
    pictures = Path(os.environ.get("CDC_PICTURES") or tempfile.mkdtemp(prefix="cdc-pictures-"))
    print(f"pictures: {pictures}")
    with open_browser(pictures) as opened:
        yield opened


@pytest.mark.parametrize(
    ("dag_id", "wrong", "param"),
    [
        ("backfill", {"source_conn_id": "elsewhere"}, "source_conn_id"),
        ("backfill", {"tables": []}, "tables"),
        ("backfill", {"tables": ["orders"]}, "tables"),
        ("backfill", {"as_of": "yesterday"}, "as_of"),
        ("backfill", {"refresh": "sometimes"}, "refresh"),
        ("backfill", {"plan_only": "perhaps"}, "plan_only"),
        ("mysql_snapshot", {"consistency": "exported"}, "consistency"),
    ],
)
def test_a_bad_param_is_refused_by_the_api_with_its_name(
    site: Site, dag_id: str, wrong: dict[str, Any], param: str
) -> None:
    right = {"source_conn_id": "cdc_mysql", "tables": [f"{site.schema}.*"], "target": site.lake.as_uri()}
    status, answer = site.trigger(dag_id, **{**right, **wrong})
    assert status == 400, answer
    assert f"Invalid input for param {param}:" in answer["detail"]


def test_the_api_triggers_a_plan(site: Site) -> None:
    given = {"source_conn_id": "cdc_mysql", "tables": [f"{site.schema}.*"], "plan_only": True}
    # The one target that is allowed is the default.
    status, answer = site.trigger("backfill", **given)
    assert status == 200, answer
    state, tasks = site.wait_for_end("backfill")
    assert (state, tasks) == ("success", {"preflight": "success", **dict.fromkeys(STEPS[1:], "skipped")})
    assert not site.lake.exists()


def fill_in(browser: Browser, site: Site, *, plan_only: bool) -> None:
    browser.open(f"{site.url}/dags/backfill")
    browser.click("button", "Trigger")
    browser.wait_text("Show the plan only")
    assert browser.script("!document.body.innerText.includes('Rows per chunk')"), "Advanced is folded"
    browser.type("#element_source_conn_id", "cdc_mysql")
    browser.type("#element_tables", f"{site.schema}.*")
    if plan_only:
        browser.script("document.querySelector('[name=element_plan_only]').click()")
    browser.shot("form")
    browser.click("button", "Advanced")
    browser.wait_text("Rows per chunk")
    browser.shot("form-advanced")


def submit(browser: Browser) -> None:
    buttons = "[...document.querySelectorAll('[role=dialog] button')]"
    browser.script(f"{buttons}.filter(one => one.innerText.trim() == 'Trigger').at(-1).click()")
    browser.wait_text("Dag Run Triggered")


def test_a_person_plans_copies_and_reads_the_report(site: Site, browser: Browser) -> None:
    fill_in(browser, site, plan_only=True)
    submit(browser)
    state, tasks = site.wait_for_end("backfill")
    assert (state, tasks["preflight"], tasks["snapshot"]) == ("success", "success", "skipped")
    run_id = site.last_run("backfill")["dag_run_id"]
    browser.open(f"{site.url}/dags/backfill/runs/{run_id}/tasks/preflight")
    browser.wait_text("The plan. Nothing is copied")
    browser.shot("plan")
    assert not site.lake.exists()

    fill_in(browser, site, plan_only=False)
    submit(browser)
    run_id = site.last_run("backfill")["dag_run_id"]
    browser.open(f"{site.url}/dags/backfill/runs/{run_id}/tasks/snapshot")
    browser.wait_text("chunks in", 600)
    browser.shot("progress")
    state, tasks = site.wait_for_end("backfill")
    assert (state, set(tasks.values())) == ("success", {"success"})
    browser.open(f"{site.url}/dags/backfill/runs/{run_id}/tasks/consolidate/details")
    link = browser.wait("[...document.querySelectorAll('a')].find(a => a.innerText.trim() == 'Report')?.href")
    browser.shot("report-link")
    (report,) = site.lake.glob("_runs/*/report.html")
    assert link == f"https://files.example.com/{report.relative_to(site.lake)}"
    browser.open(report.as_uri())
    browser.wait_text("Timeline")
    assert f"{ROWS:,}" in browser.script("document.body.innerText")
    browser.shot("report")
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    assert browser.script("document.documentElement.scrollWidth <= 390"), "a phone scrolls in one direction"
    browser.shot("report-on-a-phone")
    browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("connection", ["cdc_mysql", "cdc_postgres"])
def test_a_person_tests_a_connection(site: Site, browser: Browser, connection: str) -> None:
    browser.open(f"{site.url}/connections")
    browser.wait_text(connection)
    row = f"[...document.querySelectorAll('tr')].find(tr => tr.innerText.includes('{connection}'))"
    browser.wait(f"!!{row}?.querySelector('button[aria-label=\"Test Connection\"]:not([disabled])')")
    browser.script(f"{row}.querySelector('button[aria-label=\"Test Connection\"]').click()")
    browser.wait_text("Test Connection")
    # PostgreSQL's wal_level of the shared server may not do; what counts is that the button says what preflight would.
    told = browser.wait(
        "['Test Connection Successful', 'Test Connection Failed', 'wal_level', 'gtid_mode']"
        ".find(text => document.body.innerText.includes(text))"
    )
    assert told != "Test Connection Failed" or "copies cannot be made" in browser.script("document.body.innerText")
    browser.shot(f"connection-{connection}")
