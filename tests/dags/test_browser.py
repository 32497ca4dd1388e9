"""Actions of a user in Airflow's UI, in a real browser, and the same actions by the REST API.

The tests fill in the form, view the plan, copy, read the report, test connections, and rebuild past nights by Airflow's
own Backfill. Screenshots are kept in the folder that the test prints, or that ``CDC_PICTURES`` names.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc import Read
from airflow_provider_cdc.core.run.ledger import FIRST
from harness import oracle
from harness.airflow_home import ROOT, AirflowHome
from harness.airflow_server import running_airflow
from harness.browser import Browser, open_browser
from harness.cache import cache_directory
from harness.mysql_server import MysqlServer
from harness.pipeline import published
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.server_process import free_port
from tests.dags.site import Site
from tests.dags.watching import STEPS

ROWS = 60_000
CONDITION, COMPARED = "v = 7", '"v" = 7'
"""In the form, and as the plan and the report show it."""
CHUNK_ROWS = 10
"""It has enough chunks for progress to be visible while they are read."""
MINUTE = timedelta(minutes=1)
NIGHTLY = """
schedule: "{minutes} * * * *"
start_date: {start:%Y-%m-%d}
sources:
  - source_conn_id: cdc_mysql
    kind: mysql
    tables: ["{schema}.*"]
    target: {lake}
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


@dataclass
class Nights:
    """A schema with constant writes, and minutes that represent nights.

    ``first_log`` and ``before``: where its log begins, and the GTID set then.
    """

    schema: str
    first_log: str
    before: str
    at: list[datetime] = field(default_factory=list)


@pytest.fixture(scope="module")
def nights(mysql: MysqlServer) -> Iterator[Nights]:
    mysql.query("FLUSH BINARY LOGS")
    log = str(mysql.query("SHOW BINARY LOG STATUS")[0][0])
    nights = Nights("nights", log, str(mysql.query("SELECT @@global.gtid_executed")[0][0]))
    mysql.query(f"CREATE DATABASE {nights.schema}")
    mysql.query(f"CREATE TABLE {nights.schema}.t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)")
    mysql.query(f"CREATE TABLE {nights.schema}.keyless (v INT)")
    first = (datetime.now(UTC) + timedelta(seconds=5)).replace(second=0, microsecond=0) + MINUTE
    nights.at = [first + number * MINUTE for number in range(4)]
    with _writing(mysql, nights.schema):
        yield nights
    mysql.query(f"DROP DATABASE {nights.schema}")


@contextmanager
def _writing(mysql: MysqlServer, schema: str) -> Iterator[None]:
    stop, dice = threading.Event(), random.Random(7)

    def write() -> None:
        with mysql.connect(database=schema, autocommit=False) as connection, connection.cursor() as cursor:
            while not stop.wait(0.05):
                cursor.execute("INSERT INTO t (v) VALUES (%s), (%s)", (dice.randrange(100), dice.randrange(100)))
                cursor.execute("UPDATE t SET v = v + 1 WHERE id %% 7 = %s", (dice.randrange(7),))
                cursor.execute("DELETE FROM t WHERE id %% 50 = %s", (dice.randrange(50),))
                cursor.execute("INSERT INTO keyless VALUES (%s)", (dice.randrange(5),))
                cursor.execute("DELETE FROM keyless WHERE v = %s LIMIT 1", (dice.randrange(5),))
                connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@pytest.fixture(scope="module")
def site(
    mysql: MysqlServer, postgres: PostgresServer, nights: Nights, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    schema = "browsed"
    mysql.query("CREATE USER weak@localhost")
    mysql.query(f"CREATE DATABASE {schema}")
    mysql.query(f"CREATE TABLE {schema}.orders (id INT AUTO_INCREMENT PRIMARY KEY, v INT)")
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
    for _ in range(ROWS // 1000):
        mysql.query(f"INSERT INTO {schema}.orders (id) {numbers} SELECT NULL FROM n")
    mysql.query(f"UPDATE {schema}.orders SET v = id % 60")
    airflow = AirflowHome(folder / "airflow", {})
    airflow.environment |= {
        "AIRFLOW__CDC__SOURCE_CONN_IDS": "cdc_mysql cdc_postgres",
        "AIRFLOW__CDC__REPORT_URLS": f"{(folder / 'lake').as_uri()}=https://files.example.com",
        "AIRFLOW__CDC__TARGETS": (folder / "lake").as_uri(),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
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
    connections["cdc_weak"] = {**connections["cdc_mysql"], "login": "weak"}
    airflow.add_connections(connections)
    port = free_port()
    with running_airflow(airflow, port) as check:
        found = Site(f"http://127.0.0.1:{port}", check, schema, folder)
        found.log_in()
        for dag_id in ("copy_tables", "mysql_snapshot"):
            found.wait_for_dag(dag_id)
        yield found
    mysql.query(f"DROP DATABASE {schema}")
    mysql.query("DROP USER weak@localhost")


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    # Not a folder of pytest's, which removes those of tests that passed.
    pictures = Path(os.environ.get("CDC_PICTURES") or cache_directory() / "pictures")
    pictures.mkdir(exist_ok=True)
    print(f"pictures: {pictures}")
    with open_browser(pictures) as opened:
        yield opened


@pytest.mark.parametrize(
    ("dag_id", "wrong", "param"),
    [
        ("copy_tables", {"source_conn_id": "elsewhere"}, "source_conn_id"),
        ("copy_tables", {"tables": []}, "tables"),
        ("copy_tables", {"tables": ["orders"]}, "tables"),
        ("copy_tables", {"as_of": "yesterday"}, "as_of"),
        ("copy_tables", {"where": "id = 1"}, "where"),
        ("copy_tables", {"columns": {"shop.orders": "id"}}, "columns"),
        ("copy_tables", {"refresh": "sometimes"}, "refresh"),
        ("copy_tables", {"plan_only": "perhaps"}, "plan_only"),
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
    status, answer = site.trigger("copy_tables", **given)
    assert status == 200, answer
    state, tasks = site.wait_for_end("copy_tables")
    assert (state, tasks) == ("success", {"preflight": "success", **dict.fromkeys(STEPS[1:], "skipped")})
    assert not site.lake.exists()


def fill_in(browser: Browser, site: Site, *, plan_only: bool) -> None:
    browser.open(f"{site.url}/dags/copy_tables")
    browser.click("button", "Trigger")
    browser.wait_text("Show the plan only")
    assert browser.script("!document.body.innerText.includes('Rows per chunk')"), f"{Read.section} is folded"
    browser.type("#element_source_conn_id", "cdc_mysql")
    browser.type("#element_tables", f"{site.schema}.*")
    browser.edit("#element_where .view-lines", json.dumps({f"{site.schema}.orders": CONDITION}))
    shown = "document.querySelector('#element_where .view-lines').innerText.replaceAll('\\u00a0', ' ')"
    browser.wait(f"{shown}.includes({json.dumps(CONDITION)})", what="the condition")
    if plan_only:
        browser.script("document.querySelector('[name=element_plan_only]').click()")
    browser.shot("form")
    browser.click("button", Read.section)
    browser.wait_text("Rows per chunk")
    browser.type("[id*=element_chunk_rows] input, input[name=element_chunk_rows]", str(CHUNK_ROWS))
    browser.shot("form-advanced")


def submit(browser: Browser) -> None:
    buttons = "[...document.querySelectorAll('[role=dialog] button')]"
    browser.script(f"{buttons}.filter(one => one.innerText.trim() == 'Trigger').at(-1).click()")
    browser.wait_text("Dag Run Triggered")


def test_a_person_plans_copies_and_reads_the_report(site: Site, browser: Browser, mysql: MysqlServer) -> None:
    fill_in(browser, site, plan_only=True)
    submit(browser)
    state, tasks = site.wait_for_end("copy_tables")
    assert (state, tasks["preflight"], tasks["snapshot"]) == ("success", "success", "skipped")
    run_id = site.last_run("copy_tables")["dag_run_id"]
    browser.open(f"{site.url}/dags/copy_tables/runs/{run_id}/tasks/preflight")
    browser.wait_text("Plan (nothing is copied")
    browser.wait_text(COMPARED)
    browser.shot("plan")
    assert not site.lake.exists()

    fill_in(browser, site, plan_only=False)
    submit(browser)
    run_id = site.last_run("copy_tables")["dag_run_id"]
    browser.open(f"{site.url}/dags/copy_tables/runs/{run_id}/tasks/snapshot")
    seen = browser.wait(r"/snapshot: \d+ %, [\d,]+ of [\d,]+ chunks.*/.exec(document.body.innerText)?.[0]", 600)
    assert f"at work: {site.schema}.orders" in seen
    browser.shot("progress")
    state, tasks = site.wait_for_end("copy_tables")
    assert (state, set(tasks.values())) == ("success", {"success"})
    browser.open(f"{site.url}/dags/copy_tables/runs/{run_id}/tasks/consolidate/details")
    link = browser.wait("[...document.querySelectorAll('a')].find(a => a.innerText.trim() == 'Report')?.href")
    browser.shot("report-link")
    (report,) = site.lake.glob("_runs/*/report.html")
    assert link == f"https://files.example.com/{report.relative_to(site.lake)}"
    browser.open(report.as_uri())
    browser.wait_text("Timeline")
    told = browser.script("document.body.innerText")
    wanted = [int(row[0]) for row in mysql.query(f"SELECT id FROM {site.schema}.orders WHERE {CONDITION} ORDER BY id")]
    assert wanted
    assert f"{len(wanted):,} rows" in told
    assert COMPARED in told
    (copy,) = site.lake.glob(f"{site.schema}.orders*/snapshot=*")
    columns, rows = published(copy.as_uri())
    assert sorted(row[columns.index("id")] for row in rows) == wanted
    lines = (
        "(() => { const text = document.createRange(); text.selectNodeContents("
        f"[...document.querySelectorAll('td')].find(one => one.innerText == '{site.schema}.orders')); "
        "return text.getClientRects().length; })()"
    )
    assert browser.script(lines) == 1, "the name of a table is not broken for the sake of other columns"
    browser.shot("report")
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    assert browser.script("document.documentElement.scrollWidth <= 390"), "a phone scrolls in one direction"
    browser.shot("report-on-a-phone")
    browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize(
    ("connection", "told"),
    [
        ("cdc_mysql", "Test Connection Successful"),
        ("cdc_postgres", "Test Connection Successful"),
        ("cdc_weak", "GRANT REPLICATION CLIENT"),
    ],
)
def test_a_person_tests_a_connection(site: Site, browser: Browser, connection: str, told: str) -> None:
    press_in_row(browser, site, connection, "Test Connection")
    browser.wait_text(told)
    browser.shot(f"connection-{connection}")


def press_in_row(browser: Browser, site: Site, connection: str, button: str) -> None:
    browser.open(f"{site.url}/connections")
    browser.wait_text(connection)
    row = f"[...document.querySelectorAll('tr')].find(tr => tr.innerText.includes('{connection}'))"
    found = f"{row}?.querySelector('button[aria-label=\"{button}\"]:not([disabled])')"
    browser.wait(f"!!{found}", what=button)
    browser.script(f"{found}.click()")


@pytest.mark.parametrize(
    ("connection", "labels"),
    [
        ("cdc_mysql", ["User", "TLS mode", "TLS authority", "Trusted network", "Server's RSA key"]),
        ("cdc_postgres", ["User", "Database", "Publication", "TLS mode", "TLS authority", "Channel binding"]),
    ],
)
def test_the_form_of_a_connection_names_what_the_errors_name(
    site: Site, browser: Browser, connection: str, labels: list[str]
) -> None:
    press_in_row(browser, site, connection, "Edit Connection")
    browser.click("[role=dialog] button", "Extra Fields")
    for label in labels:
        browser.wait_text(label)
    told = browser.script("document.querySelector('[role=dialog]').innerText")
    assert "null" not in told
    browser.shot(f"form-{connection}")


def choose_minute(browser: Browser, number: int, minute: datetime) -> None:
    """Fill in one of the times of the Backfill dialog."""
    field = f"document.querySelectorAll('[role=dialog] [data-testid=datetime-input]')[{number}]"
    browser.wait(f"!!{field}", what="the field of a time")
    browser.script(f"{field}.click()")
    browser.type('[placeholder="YYYY/MM/DD"]', f"{minute:%Y/%m/%d}")
    browser.type('[placeholder="HH:mm"]', f"{minute:%H:%M}")
    browser.wait(f"{field}.innerText.includes('{minute:%H:%M}')", what="the time")
    browser.script(f"{field}.click()")
    browser.wait("!document.querySelector('[placeholder=\"HH:mm\"]')", what="the end of the calendar")


def test_a_person_rebuilds_past_nights_and_so_does_the_api(
    site: Site, browser: Browser, nights: Nights, mysql: MysqlServer, mysql_oracle: MysqlServer
) -> None:
    time.sleep(max(0.0, (nights.at[-1] + timedelta(seconds=10) - datetime.now(UTC)).total_seconds()))
    lake = site.folder / "nights"
    minutes = ",".join(str(at.minute) for at in nights.at)
    (site.folder / "dags/nightly.yaml").write_text(
        NIGHTLY.format(
            minutes=minutes, start=nights.at[0] - timedelta(days=1), schema=nights.schema, lake=lake.as_uri()
        )
    )
    site.wait_for_dag("nightly")

    browser.open(f"{site.url}/dags/nightly")
    browser.click("button", "Trigger")
    browser.click("[role=dialog] label", "Backfill")
    choose_minute(browser, 0, nights.at[0])
    choose_minute(browser, 1, nights.at[1])
    browser.wait_text("2 runs will be triggered.")
    browser.shot("backfill")
    browser.click("[role=dialog] button", "Run Backfill")
    browser.wait_text("Backfill generated")
    assert site.backfilled() == dict.fromkeys(nights.at[:2], "success")
    browser.open(f"{site.url}/dags/nightly/backfills")
    browser.wait_text("Completed at")
    browser.shot("backfilled")

    asked = {"dag_id": "nightly", "from_date": f"{nights.at[2]:%FT%TZ}", "to_date": f"{nights.at[2]:%FT%TZ}"}
    status, answer = site.ask("/api/v2/backfills", {**asked, "dag_run_conf": {}, "max_active_runs": 1})
    assert status == 200, answer
    assert site.backfilled() == dict.fromkeys(nights.at[:3], "success")

    copies = {}
    for entry in lake.glob(f"_runs/*/{FIRST}"):
        record = json.loads(entry.read_text())["entry"]["manifest"]
        copies[datetime.fromisoformat(record["options"]["as_of"])] = record["run_id"], record["initial_position"]
    # The scheduler may have made one of the last of them.
    assert set(nights.at[:3]) <= copies.keys() <= set(nights.at)
    done, seen = nights.before, []
    for at in nights.at[:3]:
        run_id, position = copies[at]
        (more,) = mysql.query("SELECT GTID_SUBTRACT(%s, %s)", (position, done))[0]
        oracle.replay(mysql, mysql_oracle, str(more).replace("\n", ""), nights.first_log)
        done = position
        for table in (f"{nights.schema}.t", f"{nights.schema}.keyless"):
            columns, rows = published((lake / table / f"snapshot={run_id}").as_uri())
            assert Counter(rows) == oracle.rows_at(mysql_oracle, table, columns)
            seen.append((table, sorted(rows)))
    assert len({str(one) for one in seen}) == len(seen), "the nights differ"
