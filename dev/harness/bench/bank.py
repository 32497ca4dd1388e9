"""A bank: four tables with invariants, and the sessions that write to it.

Money is conserved: the balance of an account is the sum of its entries in the ledger. Every order has its lines. Each
transaction of the writers keeps both rules, so they hold at each position of the log, and at no other state of the
tables.

The key of each table is its first column. ``updated`` is the time at which the transaction began, in milliseconds. An
application that sets such a column itself does it in this way.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import psycopg
import pymysql

from harness.bench.traffic import WRITER, WRITERS, Traffic
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer

Row = tuple[Any, ...]

SCHEMA = "bank"
MARKS = "bank_marks"
"""The schema of the table ``marks``. A row in it marks a position of the log. No contender copies this schema."""
TABLES: Mapping[str, Mapping[str, str]] = {
    "accounts": {"id": "BIGINT", "branch": "BIGINT", "owner": "VARCHAR(40)", "balance": "BIGINT", "updated": "BIGINT"},
    "ledger": {"id": "BIGINT", "account": "BIGINT", "amount": "BIGINT", "updated": "BIGINT"},
    "orders": {
        "id": "BIGINT",
        "account": "BIGINT",
        "line_count": "BIGINT",
        "total": "BIGINT",
        "updated": "BIGINT",
    },
    "order_lines": {"id": "BIGINT", "order_id": "BIGINT", "amount": "BIGINT", "updated": "BIGINT"},
}
"""The columns of each table."""
OPENING = 1000
"""The balance with which each account is opened."""
LINES = 3
"""The number of lines of each order at the beginning."""
LARGE_SHARE = 100
"""One large transaction changes the accounts divided by this number."""
LARGE_SECONDS = 2.0
"""The time between two large transactions."""
LATE_SECONDS = 0.3
"""The time between the changes of a late transaction and its commit."""
_OWN_KEYS = 10**12
"""The distance between the new keys of two writers."""


def make_bank(server: MysqlServer | PostgresServer, accounts: int) -> None:
    """Create the tables with this number of accounts. Each fourth account has an order."""
    mysql = isinstance(server, MysqlServer)
    cascade = "" if mysql else " CASCADE"
    for schema in (SCHEMA, MARKS):
        server.query(f"DROP SCHEMA IF EXISTS {schema}{cascade}")
        server.query(f"CREATE SCHEMA {schema}")
    server.query(f"CREATE TABLE {MARKS}.marks (id BIGINT PRIMARY KEY)")
    # The signalling table of Debezium, with the columns of its documentation.
    server.query(f"CREATE TABLE {MARKS}.signals (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32), data VARCHAR(2048))")
    for table, columns in TABLES.items():
        listed = ", ".join(f"{name} {of}{' PRIMARY KEY' if name == 'id' else ''}" for name, of in columns.items())
        server.query(f"CREATE TABLE {SCHEMA}.{table} ({listed})")
    orders = accounts // 4
    rows = {
        "accounts": (accounts, f"n, n % 50, CONCAT('owner ', n), {OPENING}, 0"),
        "ledger": (accounts, f"n, n, {OPENING}, 0"),
        "orders": (orders, f"n, n * 4, {LINES}, {10 * LINES}, 0"),
        "order_lines": (orders * LINES, f"n, (n + {LINES - 1}) {'DIV' if mysql else '/'} {LINES}, 10, 0"),
    }
    for table, (count, values) in rows.items():
        if mysql:
            digits = " CROSS JOIN ".join(f"digits d{place}" for place in range(7))
            number = " + ".join(f"d{place}.d * {10**place}" for place in range(7))
            server.query(
                f"INSERT INTO {SCHEMA}.{table} WITH RECURSIVE digits (d) AS "
                "(SELECT 0 UNION ALL SELECT d + 1 FROM digits WHERE d < 9), "
                f"numbers (n) AS (SELECT 1 + {number} FROM {digits}) "
                f"SELECT {values} FROM numbers WHERE n <= {count} ORDER BY n"
            )
        else:
            server.query(f"INSERT INTO {SCHEMA}.{table} SELECT {values} FROM generate_series(1, {count}) AS n")
            server.query(f"ANALYZE {SCHEMA}.{table}")


def broken_rules(contents: Mapping[str, Iterable[Row]]) -> int:
    """Return the number of accounts and orders in ``contents`` that break a rule of the bank."""
    balances = Counter[Any]()
    for id, _, _, balance, _ in contents["accounts"]:
        balances[id] += balance
    entries = Counter[Any]()
    for _, account, amount, _ in contents["ledger"]:
        entries[account] += amount
    wrong_accounts = sum(balances[id] != entries[id] for id in balances.keys() | entries.keys())
    ordered = {id: (lines, total) for id, _, lines, total, _ in contents["orders"]}
    found = dict[Any, tuple[int, int]]()
    for _, order, amount, _ in contents["order_lines"]:
        lines, total = found.get(order, (0, 0))
        found[order] = lines + 1, total + amount
    return wrong_accounts + sum(ordered.get(id) != found.get(id) for id in ordered.keys() | found.keys())


class BankTraffic(Traffic):
    """Sessions that together commit ``per_second`` transactions. Use it as a context manager.

    Of a hundred transactions, 58 are transfers, 2 are transfers that commit late, 15 make an order, 10 delete an order
    and insert it again with other lines, 10 give an order another key, and 5 delete an order. In addition, the first
    session moves money between many accounts in one transaction every `LARGE_SECONDS`.
    """

    def __init__(self, server: MysqlServer | PostgresServer, accounts: int, per_second: float) -> None:
        if isinstance(server, MysqlServer):
            connect: Callable[[], Any] = partial(
                pymysql.connect, host=server.host, port=server.port, user="root", autocommit=True
            )
        else:
            address = f"postgresql://{SUPERUSER}@{server.host}:{server.port}/postgres?application_name={WRITER}"
            connect = partial(psycopg.connect, address, autocommit=True)
        self._per_second, self._writing = per_second, get_context("spawn").Event()
        self._writing.set()
        super().__init__(connect, accounts)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Commit nothing, except what is in flight, until the block ends."""
        self._writing.clear()
        try:
            yield
        finally:
            self._writing.set()

    def _process_of(self, connect: Callable[[], Any], rows: int) -> Any:
        arguments = (connect, rows, self._per_second, self._commits, self._worst, self._stop, self._writing)
        return get_context("spawn").Process(target=_write, args=arguments, daemon=True)


def _write(
    connect: Callable[[], Any], accounts: int, per_second: float, commits: Any, worst: Any, stop: Any, writing: Any
) -> None:
    writers = [Teller(number, accounts) for number in range(WRITERS)]
    threads = [
        threading.Thread(target=writer.work, args=(connect, per_second / WRITERS, commits, worst, stop, writing))
        for writer in writers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Teller:
    """One session. It has orders of its own, so it never waits for another session's order."""

    def __init__(self, number: int, accounts: int) -> None:
        self._number, self._accounts = number, accounts
        self._chance = random.Random(number)
        self._next_key = _OWN_KEYS * (number + 1)
        self._orders = {
            order: [LINES * (order - 1) + line + 1 for line in range(LINES)]
            for order in range(1, accounts // 4 + 1)
            if order % WRITERS == number
        }
        """The keys of the lines of each own order."""
        self._listed = list(self._orders)

    def work(
        self, connect: Callable[[], Any], per_second: float, commits: Any, worst: Any, stop: Any, writing: Any
    ) -> None:
        """Commit transactions until ``stop`` is set. An error ends all sessions."""
        try:
            self._work(connect, per_second, commits, worst, stop, writing)
        except BaseException:
            stop.set()
            raise

    def _work(
        self, connect: Callable[[], Any], per_second: float, commits: Any, worst: Any, stop: Any, writing: Any
    ) -> None:
        due = large = time.perf_counter()
        with closing(connect()) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                if not writing.wait(0.1):
                    continue
                orders, listed = dict(self._orders), list(self._listed)
                large_now = self._number == 0 and time.perf_counter() >= large
                statements, late = (self._large(), False) if large_now else self._transaction()
                if large_now:
                    large = time.perf_counter() + LARGE_SECONDS
                cursor.execute("BEGIN")
                try:
                    started = time.perf_counter()
                    for statement, values in statements:
                        cursor.execute(statement, values)
                    if late:
                        time.sleep(LATE_SECONDS)
                        started += LATE_SECONDS
                    cursor.execute("COMMIT")
                except (pymysql.err.OperationalError, psycopg.errors.DeadlockDetected):
                    # The server has ended this transaction. It is not tried again.
                    cursor.execute("ROLLBACK")
                    self._orders, self._listed = orders, listed
                    continue
                worst[self._number] = max(worst[self._number], time.perf_counter() - started)
                commits[self._number] += 1
                due = max(due + 1 / per_second, time.perf_counter() - 1)
                stop.wait(max(0.0, due - time.perf_counter()))

    def _transaction(self) -> tuple[list[tuple[str, tuple[Any, ...]]], bool]:
        kind = self._chance.random()
        if kind < 0.60:
            return self._transfer(), kind < 0.02
        if kind < 0.75 or not self._listed:
            return self._insert(self._key(), [self._key() for _ in range(self._chance.randint(1, 4))]), False
        place = self._chance.randrange(len(self._listed))
        order = self._listed[place]
        if kind < 0.85:
            lines = self._orders[order]
            return [*self._delete(order), *self._insert(order, [*lines, self._key()])], False
        self._listed[place] = self._listed[-1]
        self._listed.pop()
        if kind < 0.95:
            key, now = self._key(), _now()
            lines = self._orders.pop(order)
            self._orders[key] = lines
            self._listed.append(key)
            return [
                (f"UPDATE {SCHEMA}.orders SET id = %s, updated = %s WHERE id = %s", (key, now, order)),
                (
                    f"UPDATE {SCHEMA}.order_lines SET order_id = %s, updated = %s WHERE id IN ({_list(lines)})",
                    (key, now),
                ),
            ], False
        return self._delete(order, for_good=True), False

    def _transfer(self) -> list[tuple[str, tuple[Any, ...]]]:
        # The lower key comes first, to avoid deadlocks.
        one, other = sorted(self._chance.sample(range(1, self._accounts + 1), 2))
        amount, now = self._chance.randint(-50, 50), _now()
        statements: list[tuple[str, tuple[Any, ...]]] = []
        for account, change in ((one, amount), (other, -amount)):
            statements += [
                (
                    f"UPDATE {SCHEMA}.accounts SET balance = balance + %s, updated = %s WHERE id = %s",
                    (change, now, account),
                ),
                (f"INSERT INTO {SCHEMA}.ledger VALUES (%s, %s, %s, %s)", (self._key(), account, change, now)),
            ]
        return statements

    def _large(self) -> list[tuple[str, tuple[Any, ...]]]:
        rows = max(self._accounts // LARGE_SHARE // 2 * 2, 2)
        first, now, key = self._chance.randint(1, self._accounts - rows + 1), _now(), self._key()
        self._next_key += rows
        change = "CASE WHEN id % 2 = 0 THEN 1 ELSE -1 END".replace("%", "%%")
        accounts = f"FROM {SCHEMA}.accounts WHERE id >= %s AND id < %s"
        return [
            (
                f"UPDATE {SCHEMA}.accounts SET balance = balance + {change}, updated = %s WHERE id >= %s AND id < %s",
                (now, first, first + rows),
            ),
            (
                f"INSERT INTO {SCHEMA}.ledger SELECT id - %s + %s, id, {change}, %s {accounts}",
                (first, key, now, first, first + rows),
            ),
        ]

    def _insert(self, order: int, lines: list[int]) -> list[tuple[str, tuple[Any, ...]]]:
        amounts, now = [self._chance.randint(1, 99) for _ in lines], _now()
        if order not in self._orders:
            self._listed.append(order)
        self._orders[order] = lines
        account = self._chance.randint(1, self._accounts)
        return [
            (
                f"INSERT INTO {SCHEMA}.orders VALUES (%s, %s, %s, %s, %s)",
                (order, account, len(lines), sum(amounts), now),
            ),
            *(
                (f"INSERT INTO {SCHEMA}.order_lines VALUES (%s, %s, %s, %s)", (line, order, amount, now))
                for line, amount in zip(lines, amounts, strict=True)
            ),
        ]

    def _delete(self, order: int, *, for_good: bool = False) -> list[tuple[str, tuple[Any, ...]]]:
        lines = self._orders.pop(order) if for_good else self._orders[order]
        return [
            (f"DELETE FROM {SCHEMA}.order_lines WHERE id IN ({_list(lines)})", ()),
            (f"DELETE FROM {SCHEMA}.orders WHERE id = %s", (order,)),
        ]

    def _key(self) -> int:
        self._next_key += 1
        return self._next_key


def _list(keys: Iterable[int]) -> str:
    return ", ".join(map(str, keys))


def _now() -> int:
    return time.time_ns() // 1_000_000
