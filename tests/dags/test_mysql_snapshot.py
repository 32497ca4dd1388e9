"""The main job through Airflow and Spark, on a server with concurrent writers."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.results import Announced, AnnouncedCopies
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.jobs.runtime.driver import done_file
from harness.dag_runner import DagRunner, DagRunResult
from harness.mysql_server import MysqlServer
from tests.dags.watching import STEPS, files_of, in_background, rows_of
from tests.runs import consolidate_result, manifest_of, publish, snapshot_result

PASSWORD = "c0rrect-horse-battery"
ACCOUNTS = 300
NUMBERS = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ACCOUNTS})"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# Several Spark applications one after the other.
pytestmark = pytest.mark.timeout(1800)

TABLES = ["bank.accounts", "bank.entries", "bank.visits"]


@pytest.fixture(scope="module")
def bank(mysql: MysqlServer) -> dict[str, Any]:
    """Money that only moves, an entry and a visit for each move; returns the fields of a connection to it."""
    for statement in (
        "CREATE DATABASE bank",
        "CREATE TABLE bank.accounts (id INT PRIMARY KEY, balance DECIMAL(12,2) NOT NULL)",
        "CREATE TABLE bank.entries (account INT, memo VARCHAR(40), PRIMARY KEY (account, memo))",
        "CREATE TABLE bank.visits (account INT NOT NULL)",
        f"INSERT INTO bank.accounts {NUMBERS} SELECT i, 100 FROM n",
        "CREATE USER bank_copier@localhost IDENTIFIED BY '" + PASSWORD + "'",
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO bank_copier@localhost",
        "GRANT SELECT, LOCK TABLES ON bank.* TO bank_copier@localhost",
    ):
        mysql.query(statement)
    return {"host": mysql.host, "port": mysql.port, "login": "bank_copier", "password": PASSWORD}


@contextmanager
def transfers(mysql: MysqlServer) -> Iterator[None]:
    with mysql.connect(autocommit=False) as connection, connection.cursor() as cursor:

        def move(number: int) -> None:
            payer, payee = 1 + number * 7 % ACCOUNTS, 1 + number * 11 % ACCOUNTS
            cursor.execute("UPDATE bank.accounts SET balance = balance - 1 WHERE id = %s", [payer])
            cursor.execute("UPDATE bank.accounts SET balance = balance + 1 WHERE id = %s", [payee])
            cursor.execute("INSERT INTO bank.entries VALUES (%s, UUID())", [payer])
            cursor.execute("INSERT INTO bank.visits VALUES (%s)", [payer])
            connection.commit()

        with in_background(move, 0.02):
            yield


@dataclass
class Copied:
    """The results of one run of the DAG, and the argv of every process seen during it."""

    first: DagRunResult
    lake: Path
    argv: set[bytes]
    home: Path
    before: str
    after: str

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return rows_of(self.first.xcoms, table)


@contextmanager
def watched(mysql: MysqlServer) -> Iterator[set[bytes]]:
    """Keep money moving, and collect the argv of every process."""
    argv: set[bytes] = set()

    def watch(number: int) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                argv.add(path.read_bytes())
            except OSError:
                continue

    with transfers(mysql), in_background(watch, 0.25):
        yield argv


@pytest.fixture(scope="module")
def connections(bank: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"cdc_mysql": {"conn_type": "cdc_mysql", **bank}}


@pytest.fixture(scope="module")
def copied(
    dag_runner: DagRunner,
    connections: dict[str, dict[str, Any]],
    mysql: MysqlServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Copied:
    lake = tmp_path_factory.mktemp("lake")
    conf = {"tables": ["bank.*"], "target": lake.as_uri(), "chunk_rows": 100}
    with watched(mysql) as argv:
        before = mysql.query("SELECT @@gtid_executed")[0][0]
        first = dag_runner.run("mysql_snapshot", conf, at=AT, connections=connections)
        after = mysql.query("SELECT @@gtid_executed")[0][0]
    return Copied(first, lake, argv, dag_runner.home, before, after)


@pytest.mark.slow
def test_every_task_succeeds_at_once(copied: Copied) -> None:
    assert copied.first.states == dict.fromkeys(STEPS, "success"), copied.first.log[-8000:]
    assert copied.first.tries == dict.fromkeys(STEPS, 1)


def test_log_and_report_say_what_was_published_and_how_to_read_it(copied: Copied) -> None:
    values = copied.first.xcoms["consolidate"]
    assert f"3 copies published, exact at initial_gtid_set {values['position']}:" in copied.first.log
    for table, uri in values["published"].items():
        assert re.search(rf"{table}: [\d,]+ rows in {uri}", copied.first.log)
    (report,) = copied.lake.glob("_runs/*/report.md")
    text = report.read_text()
    assert "| DAG | mysql\\_snapshot |" in text
    assert re.search(r"\| DAG run \| manual.* \|\n\| took \| \d.* s, from", text)
    code = next(part for part in text.split("\n\n") if "read_latest" in part)
    rest = text.partition(code)[2].split("\n\n")[1]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(f"{code}\n{rest}"), names)
    assert len(names["rows"]) == ACCOUNTS


def test_xcoms_are_those_of_the_contract(copied: Copied) -> None:
    xcoms = {task: set(values) for task, values in copied.first.xcoms.items()}
    assert xcoms == {
        "preflight": {"plan", "options", "skipped", "missed_past", "may_miss_past", "request"},
        "lock_and_record": {"run_uri", "initial_gtid_set"},
        "snapshot": {"_link_ReportLink", "snapshot_upper", "counts"},
        "extract_delta": {"_link_ReportLink", "counts"},
        "consolidate": {
            "_link_ReportLink",
            "published",
            "position",
            "latest",
            "skipped",
            "removed",
            "superseded",
            "feed_gaps",
            "counts",
        },
    }
    values = copied.first.xcoms
    assert [plan["table"] for plan in values["preflight"]["plan"]] == TABLES
    assert {plan["consistency"] for plan in values["preflight"]["plan"]} == {"watermark", "lock"}
    assert values["snapshot"]["counts"]["tables"]["bank.accounts"]["rows"] == ACCOUNTS
    assert values["extract_delta"]["counts"]["transactions"] > 0
    assert set(values["consolidate"]["published"]) == set(TABLES)
    assert len(json.dumps(values)) < 20_000
    assert copied.first.events == [f"x-cdc://cdc_mysql/{table.replace('.', '/')}" for table in TABLES]


def test_positions_bound_the_run(copied: Copied) -> None:
    values = copied.first.xcoms
    initial = GtidSet.parse(values["lock_and_record"]["initial_gtid_set"])
    upper = GtidSet.parse(values["snapshot"]["snapshot_upper"])
    chain = [GtidSet.parse(copied.before), initial, upper, GtidSet.parse(copied.after)]
    for earlier, later in pairwise(chain):
        assert earlier <= later
    assert initial != upper, "nothing was written while the tables were read: the test shows nothing"


def test_all_tables_are_as_they_were_at_one_point(copied: Copied) -> None:
    balances = dict(copied.rows("bank.accounts"))
    assert len(balances) == ACCOUNTS
    assert sum(balances.values()) == 100 * ACCOUNTS
    entries = Counter(account for account, _ in copied.rows("bank.entries"))
    assert entries == Counter(account for (account,) in copied.rows("bank.visits"))
    rewound = copied.first.xcoms["consolidate"]["counts"]["rewound"]
    assert rewound["bank.accounts"] > 0


def test_published_layout_is_that_of_the_contract(copied: Copied) -> None:
    run_uri = copied.first.xcoms["lock_and_record"]["run_uri"]
    run_id = run_uri.rsplit("/", 1)[-1]
    assert re.fullmatch(r"20260102T030405Z-[0-9a-f]{8}", run_id)
    assert run_uri == f"{copied.lake.as_uri()}/_runs/{run_id}"
    for table in TABLES:
        latest = json.loads((copied.lake / table / "_latest.json").read_text())
        assert latest["run_id"] == run_id
        assert latest["initial_gtid_set"] == copied.first.xcoms["lock_and_record"]["initial_gtid_set"]
        assert latest["rows"] == len(copied.rows(table))
        published = f"{copied.lake.as_uri()}/{table}/snapshot={run_id}"
        assert latest["path"] == copied.first.xcoms["consolidate"]["published"][table] == published
        assert all(name.startswith("part-") for name in Storage(published).files())


@pytest.mark.slow
def test_clearing_any_task_of_a_finished_run_changes_nothing(
    copied: Copied, dag_runner: DagRunner, connections: dict[str, dict[str, Any]], mysql: MysqlServer
) -> None:
    """Each task is cleared and run again, the last one first, while money keeps moving."""
    files = files_of(copied.lake)
    with watched(mysql) as argv:
        again = dag_runner.rerun("mysql_snapshot", AT, STEPS[::-1], connections=connections)
    assert again.states == dict.fromkeys(STEPS, "success"), again.log[-8000:]
    assert again.tries == dict.fromkeys(STEPS, 2)
    assert files_of(copied.lake) == files
    assert [again.xcoms[task] for task in STEPS[1:]] == [copied.first.xcoms[task] for task in STEPS[1:]]
    assert "and keeps initial_gtid_set" in again.log
    assert again.events == copied.first.events, "a publication is announced once"
    assert_nowhere(PASSWORD, again, argv, (copied.home, copied.lake))


@pytest.mark.slow
def test_a_publication_is_announced_again_only_if_airflow_does_not_have_its_events(
    dag_runner: DagRunner, tmp_path: Path
) -> None:
    """A task that succeeds and dies before it reports to Airflow leaves the same records as one that was cleared."""
    names = [TableName("shop", name) for name in ("lines", "orders")]
    tables = [Table(name, (Column("id", "int", False),), ("id",)) for name in names]
    uris = {str(name): "file:///x" for name in names}
    days = (datetime(2025, 1, day, tzinfo=UTC) for day in count(1))

    def published(run_id: str, *latest: bool) -> Run:
        entries = tuple(RunTable(table, "watermark", "") for table in tables)
        run = Run.create(manifest_of(Storage(tmp_path.as_uri()), run_id, tables=entries, source_conn_id="shop"))
        run.finish_step("snapshot", snapshot_result())
        publish(run, consolidate_result(published=uris, rows=dict.fromkeys(uris, 3)))
        run.note_latest(dict(zip(uris, latest, strict=True)))
        return run

    def announced(run: Run) -> list[str]:
        run.folder.write_json(done_file("consolidate"), {})
        shop = {"conn_type": "cdc_mysql", "host": "db", "login": "cdc"}
        result = dag_runner.run("announced", {"run_uri": run.folder.uri}, at=next(days), connections={"shop": shop})
        assert result.state == "success", result.log[-5000:]
        return result.events

    run = published("20250101T000000Z-00000000", False, True)
    assert announced(run) == ["x-cdc://shop/shop/lines?past=true", "x-cdc://shop/shop/orders"]
    # The newer head of one table is removed, and the other table has got one.
    run.note_latest({"shop.lines": True, "shop.orders": False})
    assert announced(run) == ["x-cdc://shop/shop/lines"]

    died = published("20250101T000000Z-11111111", True, True)
    died.record_announced(AnnouncedCopies(({"shop.orders": Announced("x-cdc://shop/shop/orders", latest=True)},)))
    assert announced(died) == ["x-cdc://shop/shop/lines", "x-cdc://shop/shop/orders"]
    # As an earlier version left word, without saying of what.
    died.record_announced()
    assert announced(died) == []


def test_progress_of_the_app_is_in_the_task_s_log(copied: Copied) -> None:
    assert "bank.visits" in copied.first.log
    assert "snapshot: 3 tables" in copied.first.log
    assert "consolidate: done" in copied.first.log


def test_password_is_nowhere_but_in_the_drivers_environment(copied: Copied) -> None:
    assert any(b"SparkSubmit" in argv for argv in copied.argv), "the test saw no spark-submit"
    events = [path.read_bytes() for path in copied.home.rglob("events/**/*") if path.is_file()]
    assert any(b"SparkListenerEnvironmentUpdate" in event for event in events), "Spark wrote no readable event log"
    assert_nowhere(PASSWORD, copied.first, copied.argv, (copied.home, copied.lake))


def assert_nowhere(secret: str, result: DagRunResult, argv: set[bytes], places: Sequence[Path]) -> None:
    assert not [one for one in argv if secret.encode() in one]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert [str(path) for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in repr((result.xcoms, result.rendered))
    assert secret not in result.log


@pytest.mark.long
def test_author_s_own_dag_hands_on_what_was_published(
    dag_runner: DagRunner, bank: dict[str, Any], tmp_path: Path
) -> None:
    result = dag_runner.run(
        "nightly_copy",
        {"tables": ["bank.acc*"], "target": tmp_path.as_uri()},
        connections={"stock_mysql": {"conn_type": "mysql", **bank}},
    )
    assert set(result.states.values()) == {"success"}, result.log[-8000:]
    assert result.xcoms["refresh"]["return_value"] == ["bank.accounts"]
    assert (tmp_path / "raw" / "bank.accounts" / "_latest.json").is_file()
    assert result.xcoms["shop.snapshot"]["counts"]["tables"]["bank.accounts"]["chunks"] > 1
    for step in STEPS[3:]:
        assert f"{step}: already done in the Spark application of an earlier task" in result.log


@pytest.mark.long
def test_odd_values_odd_tables_and_older_copies_are_treated_as_the_form_says(
    dag_runner: DagRunner, mysql: MysqlServer, tmp_path: Path
) -> None:
    mysql.query("CREATE DATABASE odd")
    mysql.query("CREATE TABLE odd.t (id INT PRIMARY KEY, d DATE, n DECIMAL(40))")
    mysql.query("CREATE TABLE odd.stray (id INT PRIMARY KEY) ENGINE=MyISAM")
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"INSERT INTO odd.t VALUES (1, 0, 5), (2, '2024-01-01', {'9' * 40}), (3, 0, NULL)")
    address = {"conn_type": "mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    conf = {
        "tables": ["odd.*"],
        "target": tmp_path.as_uri(),
        "unrepresentable": "null",
        "on_table_error": "skip",
        "keep": 1,
        "refresh": "auto",
    }
    run = partial(dag_runner.run, "mysql_snapshot", conf, connections={"cdc_mysql": address})
    first = run(at=datetime(2026, 1, 7, tzinfo=UTC))
    # The second night is so small that Spark does not start (`jobs.runtime.tasks.SMALL_BYTES`).
    mysql.query("UPDATE odd.t SET n = 6 WHERE id = 1")
    mysql.query("DELETE FROM odd.t WHERE id = 2")
    mysql.query("INSERT INTO odd.t VALUES (4, '2024-01-04', 7)")
    second = run(at=datetime(2026, 1, 8, tzinfo=UTC))
    assert first.states == dict.fromkeys(STEPS, "success"), first.log[-8000:]
    assert first.xcoms["snapshot"]["counts"]["nulled"] == {"odd.t": {"d": 2, "n": 1}}
    assert first.xcoms["consolidate"]["counts"]["nulled"] == {}
    assert "values of odd.t: d 2, n 1" in first.log

    for step in ("preflight", "consolidate"):
        (reason,) = first.xcoms[step]["skipped"].values()
        assert "MyISAM" in reason
        assert first.xcoms[step]["skipped"].keys() == {"odd.stray"}
    assert set(first.xcoms["consolidate"]["published"]) == {"odd.t"}
    assert "SKIPPED, not copied: odd.stray" in first.log
    (said,) = (line for line in first.log.splitlines() if "odd.stray is SKIPPED" in line)
    assert "[warning" in said
    for noise in ("NativeCodeLoader", "incubator", "log4j", "setLogLevel", "Setting default log level"):
        assert noise not in first.log, noise
    assert not any("return_value" in xcoms for xcoms in first.xcoms.values())

    assert first.xcoms["consolidate"]["removed"] == {}
    assert second.states == dict.fromkeys(STEPS, "success"), second.log[-8000:]
    gone = first.xcoms["consolidate"]["published"]["odd.t"]
    assert second.xcoms["consolidate"]["removed"] == {"odd.t": [gone]}
    assert sorted(rows_of(second.xcoms, "odd.t")) == [(1, None, 6), (3, None, None), (4, date(2024, 1, 4), 7)]
    assert len([*(tmp_path / "odd.t").glob("*=*")]) == len([*(tmp_path / "_runs").iterdir()]) == 1
    assert "Retention.copies = 1: removed 1 older copy and 1 run folder" in second.log
    report = Path(second.xcoms["consolidate"]["_link_ReportLink"].removeprefix("file://")).read_text()
    assert gone in report
    assert "MyISAM" in report
