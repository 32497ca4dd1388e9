"""The DAGs in README and `docs/dag-authors.md`, run unchanged on a real server, into an object store, and as the user
that `docs/permissions.md` creates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.airflow_home import ROOT, AirflowHome
from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from harness.s3_server import s3_environment
from tests.dags.watching import STEPS, in_background, rows_of

PASSWORD = "c0rrect-horse-battery"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


PAGES = ("README.md", "docs/dag-authors.md", "docs/filters.md")


def _dags(page: str) -> list[str]:
    return [snippet for snippet in shown(page, "python") if "with DAG(" in snippet]


def shown(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def shop(mysql: MysqlServer) -> Iterator[MysqlServer]:
    """A server with the schemas and the tables of the documents, and their user."""
    for statement in (
        *("CREATE DATABASE shop", "CREATE DATABASE crm"),
        "CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(9), created DATETIME)",
        "CREATE TABLE shop.visit_log (id INT PRIMARY KEY, at DATETIME, message TEXT, who INT)",
        "CREATE TABLE shop.notes (note INT)",
        "CREATE TABLE crm.customers (id INT PRIMARY KEY)",
        "INSERT INTO shop.orders VALUES (1, 'open', '2026-01-02'), (2, 'open', '2025-12-31')",
        "INSERT INTO shop.orders VALUES (3, 'Open', '2026-01-02')",
        "INSERT INTO shop.visit_log VALUES (1, '2026-01-02', 'hello', 7)",
        "INSERT INTO shop.notes VALUES (7), (7)",
        "INSERT INTO crm.customers VALUES (5)",
    ):
        mysql.query(statement)
    for statement in _statements(shown("docs/permissions.md", "sql")[0], PASSWORD):
        mysql.query(statement)
        if "ON shop." in statement:
            mysql.query(statement.replace("ON shop.", "ON crm."))
    yield mysql
    for name in ("shop", "crm"):
        mysql.query(f"DROP DATABASE {name}")
    mysql.query("DROP USER copier@localhost")


def _statements(text: str, password: str) -> list[str]:
    on_this_machine = text.replace("'10.0.%'", "localhost").replace("…", password)
    return [one.strip() for one in re.sub("--.*", "", on_this_machine).split(";") if one.strip()]


@pytest.fixture
def runner(shop: MysqlServer, s3: str, tmp_path: Path) -> Iterator[DagRunner]:
    source = {"conn_type": "cdc_mysql", "host": shop.host, "port": shop.port, "login": "copier", "password": PASSWORD}
    names = ("cdc_mysql", "cdc_replica", "cdc_shop_eu", "cdc_shop_us")
    home = AirflowHome(tmp_path / "airflow", dict.fromkeys(names, source))
    home.environment |= s3_environment(s3)
    home.prepare()
    files = []
    for page in PAGES:
        for number, snippet in enumerate(_dags(page)):
            files.append(tmp_path / f"{Path(page).stem.replace('-', '_')}_{number}.py")
            files[-1].write_text(snippet)
    with DagRunner(home, files) as runner:
        yield runner


def test_what_the_documents_show_runs_as_it_stands(
    runner: DagRunner, shop: MysqlServer, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    now = datetime.now(UTC)

    # `report` waits for a copy, and so needs a scheduler: tests/dags/test_nightly.py runs it.
    copied = runner.run("shop_to_lake", {}, at=now)
    assert copied.state == "success", copied.log[-5000:]
    published = copied.xcoms["consolidate"]["published"]
    assert {name: uri.rpartition("/snapshot=")[0] for name, uri in published.items()} == {
        name: f"s3://lake/raw/{name}" for name in ("shop.orders", "shop.notes", "shop.visit_log", "crm.customers")
    }
    assert sorted(row[0] for row in rows_of(copied.xcoms, "shop.orders")) == [1, 2, 3]
    assert rows_of(copied.xcoms, "shop.notes") == [(7,), (7,)]
    assert str(published) in copied.log, "the task after it prints what was published"

    with in_background(lambda _: _write(shop), 0.5):
        waited = runner.run("after_the_copy", {}, at=now - timedelta(minutes=1))
    assert (waited.state, set(waited.states.values())) == ("success", {"success"}), waited.log[-5000:]
    assert waited.xcoms["published"]["return_value"]["path"] == published["shop.orders"]

    part = runner.run("open_orders", {})
    assert part.state == "success", part.log[-5000:]
    assert [row[0] for row in rows_of(part.xcoms, "shop.orders")] == [1]
    assert [(row[0], row[2]) for row in rows_of(part.xcoms, "shop.visit_log")] == [(1, "hello")]

    each = runner.run("every_shop", {})
    assert each.state == "success", each.log[-5000:]
    for index, source in enumerate(["cdc_shop_eu", "cdc_shop_us"]):
        xcoms: Mapping[str, Any] = {step: each.xcoms[f"{step}[{index}]"] for step in STEPS}
        assert xcoms["consolidate"]["published"]["shop.notes"].startswith(f"s3://lake/{source}/shop.notes/snapshot=")
        assert rows_of(xcoms, "shop.notes") == [(7,), (7,)]


def _write(mysql: MysqlServer) -> None:
    mysql.query("INSERT INTO shop.orders (status) VALUES ('sold')")
