"""The judge of `dev/bench truth` follows a real log, accepts right copies, and shows a wrong row of each wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bench import bank
from harness.bench.bank import TABLES, BankTraffic, broken_rules, make_bank
from harness.bench.commits import Commit, MysqlLog, PostgresLog
from harness.bench.contender import Address, Contender, Order
from harness.bench.judge import Contents, Counts, Example, Judge
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer

ACCOUNTS = 40


def account(number: int, balance: int) -> bank.Row:
    return (number, 1, f"owner {number}", balance, 0)


STATE: Contents = {
    "accounts": [account(number, 1000) for number in (1, 2, 3)],
    "ledger": [(number, number, 1000, 0) for number in (1, 2, 3)],
    "orders": [],
    "order_lines": [],
}
COMMITS = [
    Commit([("accounts", 1, account(1, 990)), ("ledger", 4, (4, 1, -10, 0))]),
    Commit([("accounts", 2, None)]),
    Commit([("accounts", 3, account(3, 1010))]),
]


def contents(accounts: list[bank.Row], ledger: int = 3) -> Contents:
    rows = [*STATE["ledger"], (4, 1, -10, 0)][:ledger]
    return {**STATE, "accounts": accounts, "ledger": rows}


@pytest.mark.parametrize(
    ("copied", "tables", "common", "example"),
    [
        (contents([account(1, 990), account(3, 1000)], 4), Counts(), 0, None),
        # Each table is right, at positions of its own.
        (
            contents([account(1, 990), account(2, 1000), account(3, 1000)]),
            Counts(),
            1,
            Example("accounts", "stale", account(1, 990), account(1, 1000)),
        ),
        (
            contents([account(1, 980), account(3, 1000)], 4),
            Counts(stale=1),
            1,
            Example("accounts", "stale", account(1, 980), account(1, 990)),
        ),
        (contents([account(1, 990)], 4), Counts(missing=1), 1, Example("accounts", "missing", None, account(3, 1000))),
        (
            contents([account(1, 990), account(3, 1000), account(7, 5)], 4),
            Counts(phantom=1),
            1,
            Example("accounts", "phantom", account(7, 5), None),
        ),
        (contents([account(1, 990), *2 * [account(3, 1000)]], 4), Counts(phantom=1), 1, None),
    ],
)
def test_a_copy_is_right_only_if_all_its_rows_were_there_at_one_position(
    copied: Contents, tables: Counts, common: int, example: Example | None
) -> None:
    verdict = Judge(STATE).judge(copied, COMMITS)
    assert (verdict.tables["accounts"], verdict.common, verdict.positions) == (tables, common, 4)
    assert verdict.example == example


@pytest.fixture(params=["mysql", "postgres"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MysqlServer | PostgresServer]:
    server = request.getfixturevalue(request.param)
    monkeypatch.setattr(bank, "LARGE_SECONDS", 0.2)
    if isinstance(server, MysqlServer):
        # The names of columns, which the judge's reader of the log needs.
        server.query("SET GLOBAL binlog_row_metadata = FULL")
    make_bank(server, ACCOUNTS)
    try:
        yield server
    finally:
        if isinstance(server, MysqlServer):
            server.query("SET GLOBAL binlog_row_metadata = DEFAULT")
        else:
            server.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        for schema in (bank.SCHEMA, bank.MARKS):
            server.query(f"DROP SCHEMA {schema}{' CASCADE' if isinstance(server, PostgresServer) else ''}")


@pytest.mark.slow
def test_the_log_that_the_judge_follows_leads_to_the_rows_of_the_tables(server: MysqlServer | PostgresServer) -> None:
    def rows() -> dict[str, list[bank.Row]]:
        listed = {table: ", ".join(columns) for table, columns in TABLES.items()}
        return {table: server.query(f"SELECT {names} FROM bank.{table} ORDER BY id") for table, names in listed.items()}

    judge = Judge(rows())
    log = MysqlLog(server) if isinstance(server, MysqlServer) else PostgresLog(server)
    with BankTraffic(server, ACCOUNTS, 400.0) as traffic:
        while traffic.span().commits < 200:
            time.sleep(0.05)
    commits = list(log.up_to(log.mark()))
    judge.follow(commits[:100])
    now = rows()
    assert not broken_rules(now)
    verdict = judge.judge(now, commits[100:])
    assert (verdict.right, verdict.common, verdict.example) == ([*TABLES], 0, None)
    assert {table: [own[key] for key in sorted(own)] for table, own in judge.state.items()} == now


@pytest.mark.slow
def test_a_contender_that_does_not_finish_in_time_is_ended_with_its_processes(
    mysql: MysqlServer, tmp_path: Path
) -> None:
    with Contender("bank.connectorx", Address.of(mysql), tmp_path / "log") as contender:
        contender.ready()
        before = time.monotonic()
        with pytest.raises(HarnessError, match="not finished in 0 s"):
            contender.run(Order("bank.*", 0, str(tmp_path / "target")), 0.0)
        assert time.monotonic() - before < 60
        assert not Path(f"/proc/{contender.pid}").exists()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "dump"), [("mysql", "mysqldump-single_transaction"), ("postgres", "pg_dump")])
def test_copies_that_are_known_to_be_right_come_out_right(kind: str, dump: str, tmp_path: Path) -> None:

    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "harness.bench", "truth", f"--kind={kind}", "--rows=2000", "--nights=2"]
    command += [f"--data={tmp_path / 'data'}", f"--json={file}", f"--contenders=ours,{dump.partition('-')[0]}"]
    subprocess.run(command, check=True)
    ratios = json.loads(file.read_text())["ratios"]
    for name in (f"{kind}_{dump}_1", f"{kind}_ours_1", f"{kind}_ours_2"):
        assert ratios[f"{name}_wrong_rows_together"] == ratios[f"{name}_broken_rules"] == 0.0, name
