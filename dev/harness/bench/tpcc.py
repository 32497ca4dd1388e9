"""`bench tpcc`: nightly copies of the TPC-C tables on MySQL, compared with a dump and with a full copy.

A public measurement of a nightly refresh used TPC-C at scale 25 (25 warehouses, 2.05 GB) on another machine: the dump
took 7 min 41 s, and its refresh 21 min 15 s, under about 360 transactions per second. ``--rows 12500000`` is this size:
a warehouse has about 500,000 rows.

Writers commit the transactions of TPC-C that write (new order, payment, delivery) during each copy. After the first
night, they commit ``--changes`` transactions. Then each night rolls the last copy forward. The last night runs without
writers, and its rows are compared with those of the source: the number of rows of each table, the sum of each column of
numbers, and the sum of the lengths of each column of text.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pymysql

from airflow_provider_cdc.core.storage.folder import Storage
from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.traffic import WRITERS, Traffic
from harness.errors import HarnessError
from harness.messages import say
from harness.mysql_server import MysqlServer

SCHEMA = "tpcc"
ITEMS, DISTRICTS, CUSTOMERS, UNDELIVERED = 100_000, 10, 3000, 900
"""Items in all, districts of a warehouse, customers and orders of a district, and its last orders, not delivered."""
LINES = 10
"""The lines of an order: TPC-C draws 5 to 15."""
ROWS = 500_000
"""About the rows of a warehouse."""
_AMOUNT, _ADDRESS = "DECIMAL(12,2) NOT NULL", "VARCHAR(20) NOT NULL"
TABLES: Mapping[str, str] = {
    "warehouse": f"w_id INT PRIMARY KEY, w_name VARCHAR(10), w_street {_ADDRESS}, w_tax DECIMAL(4,4), w_ytd {_AMOUNT}",
    "district": (
        f"d_w_id INT, d_id INT, d_name VARCHAR(10), d_street {_ADDRESS}, d_tax DECIMAL(4,4), d_ytd {_AMOUNT}, "
        "d_next_o_id INT, PRIMARY KEY (d_w_id, d_id)"
    ),
    "customer": (
        f"c_w_id INT, c_d_id INT, c_id INT, c_first VARCHAR(16), c_last VARCHAR(16), c_street {_ADDRESS}, "
        f"c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2), c_discount DECIMAL(4,4), c_balance {_AMOUNT}, "
        f"c_ytd_payment {_AMOUNT}, c_payment_cnt INT, c_delivery_cnt INT, c_data VARCHAR(500), "
        "PRIMARY KEY (c_w_id, c_d_id, c_id)"
    ),
    # TPC-C gives this table no key.
    "history": (
        f"h_c_id INT, h_c_d_id INT, h_c_w_id INT, h_d_id INT, h_w_id INT, h_date DATETIME, h_amount {_AMOUNT}, "
        "h_data VARCHAR(24)"
    ),
    "orders": (
        "o_w_id INT, o_d_id INT, o_id INT, o_c_id INT, o_entry_d DATETIME, o_carrier_id INT, o_ol_cnt INT, "
        "PRIMARY KEY (o_w_id, o_d_id, o_id)"
    ),
    "new_order": "no_w_id INT, no_d_id INT, no_o_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id)",
    "order_line": (
        "ol_w_id INT, ol_d_id INT, ol_o_id INT, ol_number INT, ol_i_id INT, ol_delivery_d DATETIME, ol_quantity INT, "
        f"ol_amount {_AMOUNT}, ol_dist_info CHAR(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)"
    ),
    "item": "i_id INT PRIMARY KEY, i_name VARCHAR(24), i_price DECIMAL(5,2), i_data VARCHAR(50)",
    "stock": (
        "s_w_id INT, s_i_id INT, s_quantity INT, s_dist CHAR(240), s_ytd INT, s_order_cnt INT, s_data VARCHAR(50), "
        "PRIMARY KEY (s_w_id, s_i_id)"
    ),
}
_DISTRICT = f"1 + n DIV {DISTRICTS * CUSTOMERS}, 1 + n DIV {CUSTOMERS} % {DISTRICTS}"
_FILLED: Mapping[str, tuple[int, str]] = {
    "warehouse": (1, "n + 1, CONCAT('house ', n), 'street', 0.1, 300000"),
    "district": (DISTRICTS, f"1 + n DIV {DISTRICTS}, 1 + n % {DISTRICTS}, 'name', 'street', 0.1, 30000, {CUSTOMERS}"),
    "customer": (
        DISTRICTS * CUSTOMERS,
        (
            f"{_DISTRICT}, n % {CUSTOMERS}, CONCAT('first', n % 97), CONCAT('last', n % 1000), 'street', '0123456789', "
            "'2026-01-01', IF(n % 10, 'GC', 'BC'), 0.1, -10, 10, 1, 0, REPEAT(SHA2(n, 256), 5)"
        ),
    ),
    "history": (
        DISTRICTS * CUSTOMERS,
        (
            f"n % {CUSTOMERS}, 1 + n DIV {CUSTOMERS} % {DISTRICTS}, 1 + n DIV {DISTRICTS * CUSTOMERS}, "
            f"1 + n DIV {CUSTOMERS} % {DISTRICTS}, 1 + n DIV {DISTRICTS * CUSTOMERS}, '2026-01-01', 10, 'paid'"
        ),
    ),
    "orders": (
        DISTRICTS * CUSTOMERS,
        (
            f"{_DISTRICT}, n % {CUSTOMERS}, (n * 7) % {CUSTOMERS}, '2026-01-01', "
            f"IF(n % {CUSTOMERS} < {CUSTOMERS - UNDELIVERED}, 1 + n % 10, NULL), {LINES}"
        ),
    ),
    "new_order": (
        DISTRICTS * UNDELIVERED,
        (
            f"1 + n DIV {DISTRICTS * UNDELIVERED}, 1 + n DIV {UNDELIVERED} % {DISTRICTS}, "
            f"{CUSTOMERS - UNDELIVERED} + n % {UNDELIVERED}"
        ),
    ),
    "order_line": (
        DISTRICTS * CUSTOMERS * LINES,
        (
            f"1 + n DIV {DISTRICTS * CUSTOMERS * LINES}, 1 + n DIV {CUSTOMERS * LINES} % {DISTRICTS}, "
            f"n DIV {LINES} % {CUSTOMERS}, n % {LINES}, 1 + (n * 13) % {ITEMS}, '2026-01-01', 5, n % 9999 / 100, "
            "SUBSTR(SHA2(n, 256), 1, 24)"
        ),
    ),
    "item": (ITEMS, "n + 1, CONCAT('item ', n), n % 100, SUBSTR(REPEAT(SHA2(n, 256), 2), 1, 50)"),
    "stock": (
        ITEMS,
        (
            f"1 + n DIV {ITEMS}, 1 + n % {ITEMS}, 10 + n % 90, SUBSTR(REPEAT(SHA2(n, 256), 4), 1, 240), 0, 0, "
            "SUBSTR(REPEAT(SHA2(n + 1, 256), 2), 1, 50)"
        ),
    ),
}
"""The rows of each table for a warehouse (of ``item``, in all), and their values for the numbers from 0."""
_NIGHTS = 2
_STEPS = ("preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=ROWS)
    parser.add_argument("--per-second", type=float, default=100.0, metavar="N", help="commits of the writers")
    parser.add_argument(
        "--changes", type=int, default=3000, metavar="N", help="transactions between nights (default: %(default)s)"
    )
    parser.add_argument("--format", choices=("parquet", "iceberg"), default="parquet", help="of the copies")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    found: dict[str, Mapping[str, Any]] = {}
    warehouses = max(arguments.rows // ROWS, 1)
    with (
        bench_server(directory) as server,
        tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work,
        Contender("mysqldump", Address.of(server), logs_directory(directory) / "mysqldump.log") as dump,
        Contender("ours", Address.of(server), logs_directory(directory) / "ours.log") as ours,
    ):
        _fill(server, warehouses)
        for contender in (dump, ours):
            contender.ready()
        with Writers(server, warehouses, arguments.per_second) as writers:

            def copy(name: str, night: int, target: str = "lake") -> None:
                say(f"bench: {name}")
                order = Order(f"{SCHEMA}.*", 0, f"{work}/{target}", "auto", night=night, format=arguments.format)
                writers.begin()
                found[name] = {**ours.run(order), "commits": writers.span().per_second}

            # What compiles or loads once does not count.
            copy("warming up", 0, "warm")
            copy("warming up", 1, "warm")
            del found["warming up"]
            say("bench: mysqldump --single-transaction")
            writers.begin()
            dumped = dump.run(Order(SCHEMA, 0, f"{work}/dump"))
            found["mysqldump"] = {**dumped, "commits": writers.span().per_second}
            copy("full copy", 0)
            for night in range(1, _NIGHTS + 1):
                writers.wait(arguments.changes)
                copy(f"night {night}", night)
            writers.wait(arguments.changes)
            with writers.paused():
                copy("a night without writers", _NIGHTS + 1)
                _compare(server, f"{work}/lake") if arguments.format == "parquet" else None
    return _report(arguments, found)


def _report(arguments: argparse.Namespace, found: Mapping[str, Mapping[str, Any]]) -> Report:
    report = Report("tpcc", arguments.rows)
    seconds = {name: sum(one["steps"].values()) if "steps" in one else one["seconds"] for name, one in found.items()}
    for name, one in found.items():
        report.results.append(
            Result(name, one["rows"] or found["full copy"]["rows"], seconds[name], one["peak_rss_mb"])
        )
        if name != "mysqldump":
            report.ratios[f"vs_mysqldump_{'_'.join(name.split())}"] = seconds["mysqldump"] / seconds[name]
    say(f"\nbench: {found['full copy']['rows']:,} rows, {arguments.changes:,} transactions between nights\n")
    print_table(
        ["", *_STEPS, "all", "of mysqldump", "client CPU s", "commits/s"],
        [
            [
                name,
                *(f"{one['steps'][step]:.2f}" if "steps" in one else "" for step in _STEPS),
                f"{seconds[name]:.2f} s",
                f"{seconds[name] / seconds['mysqldump']:.0%}",
                f"{one['cpu_seconds']:.1f}",
                f"{one['commits']:.0f}",
            ]
            for name, one in found.items()
        ],
    )
    print_ratios(report.ratios)
    return report


def _fill(server: MysqlServer, warehouses: int) -> None:
    say(f"bench: create the TPC-C tables of {warehouses} warehouses")
    server.query(f"DROP SCHEMA IF EXISTS {SCHEMA}")
    server.query(f"CREATE SCHEMA {SCHEMA}")
    with server.connect() as connection, connection.cursor() as cursor:
        # The log of the filling would only take space.
        cursor.execute("SET SESSION sql_log_bin = 0, foreign_key_checks = 0, unique_checks = 0")
        cursor.execute(f"USE {SCHEMA}")
        cursor.execute("CREATE TABLE numbers (n BIGINT PRIMARY KEY)")
        cursor.execute("INSERT INTO numbers VALUES (0)")
        numbers = 1
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns})")
            for_each, values = _FILLED[table]
            count = for_each * (1 if table == "item" else warehouses)
            while numbers < count:
                cursor.execute(f"INSERT INTO numbers SELECT n + {numbers} FROM numbers")
                numbers *= 2
            cursor.execute(f"INSERT INTO {table} SELECT {values} FROM numbers WHERE n < {count} ORDER BY n")
            connection.commit()
        cursor.execute("DROP TABLE numbers")


class Writers(Traffic):
    """Sessions that together commit ``per_second`` transactions: 49 % new orders, 47 % payments, 4 % deliveries, as
    TPC-C without the transactions that only read. Use it as a context manager."""

    def __init__(self, server: MysqlServer, warehouses: int, per_second: float) -> None:
        self._per_second, self._writing = per_second, get_context("spawn").Event()
        self._writing.set()
        connect = partial(pymysql.connect, host=server.host, port=server.port, user="root", database=SCHEMA)
        super().__init__(connect, warehouses)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Commit nothing until the block ends."""
        self._writing.clear()
        # Each session ends its transaction, and then waits.
        time.sleep(1)
        try:
            yield
        finally:
            self._writing.set()

    def wait(self, commits: int) -> None:
        """Wait until the writers have committed this number of transactions."""
        self.begin()
        while self.span().commits < commits:
            time.sleep(0.1)

    def _process_of(self, connect: Callable[[], Any], rows: int) -> Any:
        arguments = (connect, rows, self._per_second, self._commits, self._worst, self._stop, self._writing)
        return get_context("spawn").Process(target=_write, args=arguments, daemon=True)


def _write(
    connect: Callable[[], Any], warehouses: int, per_second: float, commits: Any, worst: Any, stop: Any, writing: Any
) -> None:
    def work(number: int) -> None:
        chance = random.Random(number)
        due = time.perf_counter()
        with closing(connect()) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                if not writing.wait(0.1):
                    continue
                started = time.perf_counter()
                try:
                    _TRANSACTIONS[_draw(chance)](cursor, chance, warehouses)
                    connection.commit()
                except pymysql.err.OperationalError:
                    # A deadlock or a lock that was not granted: the server has ended the transaction.
                    connection.rollback()
                    continue
                worst[number] = max(worst[number], time.perf_counter() - started)
                commits[number] += 1
                due = max(due + WRITERS / per_second, time.perf_counter() - 1)
                stop.wait(max(0.0, due - time.perf_counter()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _draw(chance: random.Random) -> int:
    return chance.choices((0, 1, 2), (49, 47, 4))[0]


def _new_order(cursor: Any, chance: random.Random, warehouses: int) -> None:
    house, district = chance.randint(1, warehouses), chance.randint(1, DISTRICTS)
    at = (house, district)
    cursor.execute("SELECT d_next_o_id FROM district WHERE d_w_id = %s AND d_id = %s FOR UPDATE", at)
    (order,) = cursor.fetchone()
    cursor.execute("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = %s AND d_id = %s", at)
    items = sorted(chance.sample(range(1, ITEMS + 1), chance.randint(5, 15)))
    customer = chance.randrange(CUSTOMERS)
    cursor.execute("INSERT INTO orders VALUES (%s, %s, %s, %s, NOW(), NULL, %s)", (*at, order, customer, len(items)))
    cursor.execute("INSERT INTO new_order VALUES (%s, %s, %s)", (*at, order))
    for number, item in enumerate(items):
        quantity = chance.randint(1, 10)
        cursor.execute(
            "UPDATE stock SET s_quantity = IF(s_quantity >= %s, s_quantity - %s, s_quantity - %s + 91), "
            "s_ytd = s_ytd + %s, s_order_cnt = s_order_cnt + 1 WHERE s_w_id = %s AND s_i_id = %s",
            (quantity + 10, quantity, quantity, quantity, house, item),
        )
        cursor.execute(
            "INSERT INTO order_line SELECT %s, %s, %s, %s, i_id, NULL, %s, %s * i_price, 'new' FROM item "
            "WHERE i_id = %s",
            (*at, order, number, quantity, quantity, item),
        )


def _payment(cursor: Any, chance: random.Random, warehouses: int) -> None:
    house, district = chance.randint(1, warehouses), chance.randint(1, DISTRICTS)
    customer, amount = chance.randrange(CUSTOMERS), chance.randint(100, 500_000) / 100
    cursor.execute("UPDATE warehouse SET w_ytd = w_ytd + %s WHERE w_id = %s", (amount, house))
    cursor.execute("UPDATE district SET d_ytd = d_ytd + %s WHERE d_w_id = %s AND d_id = %s", (amount, house, district))
    cursor.execute(
        "UPDATE customer SET c_balance = c_balance - %s, c_ytd_payment = c_ytd_payment + %s, "
        "c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = %s AND c_d_id = %s AND c_id = %s",
        (amount, amount, house, district, customer),
    )
    cursor.execute(
        "INSERT INTO history VALUES (%s, %s, %s, %s, %s, NOW(), %s, 'paid')",
        (customer, district, house, district, house, amount),
    )


def _delivery(cursor: Any, chance: random.Random, warehouses: int) -> None:
    house = chance.randint(1, warehouses)
    for district in range(1, DISTRICTS + 1):
        cursor.execute(
            "SELECT no_o_id FROM new_order WHERE no_w_id = %s AND no_d_id = %s ORDER BY no_o_id LIMIT 1 FOR UPDATE",
            (house, district),
        )
        if (found := cursor.fetchone()) is None:
            continue
        at = (house, district, found[0])
        cursor.execute("DELETE FROM new_order WHERE no_w_id = %s AND no_d_id = %s AND no_o_id = %s", at)
        cursor.execute("UPDATE orders SET o_carrier_id = 7 WHERE o_w_id = %s AND o_d_id = %s AND o_id = %s", at)
        cursor.execute(
            "UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = %s AND ol_d_id = %s AND ol_o_id = %s", at
        )
        cursor.execute(
            "UPDATE customer JOIN orders ON (c_w_id, c_d_id, c_id) = (o_w_id, o_d_id, o_c_id) "
            "SET c_balance = c_balance + 1, c_delivery_cnt = c_delivery_cnt + 1 "
            "WHERE o_w_id = %s AND o_d_id = %s AND o_id = %s",
            at,
        )


_TRANSACTIONS = (_new_order, _payment, _delivery)


def _compare(server: MysqlServer, lake: str) -> None:
    """Compare sums over the columns of each table with those of its last copy.

    :raises HarnessError: a sum differs.
    """
    root = Storage(lake)
    for table in TABLES:
        copied = root.at(root.read_json(f"{SCHEMA}.{table}/_latest.json")["path"])
        rows = pa.concat_tables(
            pq.read_table(copied.path(name), partitioning=None) for name in copied.files() if name.endswith(".parquet")
        )
        texts = [pa.types.is_string(field.type) or pa.types.is_large_string(field.type) for field in rows.schema]
        numbers = [pa.types.is_integer(field.type) or pa.types.is_decimal(field.type) for field in rows.schema]
        columns = [
            (name, f"SUM(CHAR_LENGTH({name}))" if text else f"SUM({name})" if number else f"COUNT({name})")
            for name, text, number in zip(rows.schema.names, texts, numbers, strict=True)
        ]
        ((count, *sums),) = server.query(
            f"SELECT COUNT(*), {', '.join(sum_of for _, sum_of in columns)} FROM {SCHEMA}.{table}"
        )
        found = [
            pc.sum(pc.utf8_length(rows[name])) if text else pc.sum(rows[name]) if number else pc.count(rows[name])
            for (name, _), text, number in zip(columns, texts, numbers, strict=True)
        ]
        if (rows.num_rows, [str(one.as_py()) for one in found]) != (count, [str(one) for one in sums]):
            raise HarnessError(f"the copy of {table} differs: {rows.num_rows}, {found}, source: {count}, {sums}")
    say("bench: the sums over all columns of the last copy are those of the source")
