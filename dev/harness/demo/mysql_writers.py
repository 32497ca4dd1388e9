"""The transactions of the demo's writers on MySQL."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pymysql

from harness.demo.stage import SCHEMA
from harness.demo.writers import Cursor, Session, Transaction, rolled_back, some_account

_ENDED = (1205, 1213)
"""Lock wait timeout and deadlock. Both only end a statement or a transaction, which is expected here."""


def session(connect: Callable[[], pymysql.Connection[Any]]) -> Session:
    """Return a function that opens sessions for `Writers`."""

    @contextlib.contextmanager
    def opened() -> Iterator[pymysql.Connection[Any]]:
        with contextlib.closing(connect()) as connection:
            connection.autocommit(False)
            with connection.cursor() as cursor:
                cursor.execute(f"USE {SCHEMA}")
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 2, time_zone = '+00:00'")
            yield connection

    return opened


def retried(error: Exception) -> bool:
    """Return whether an error only ends a transaction."""
    if isinstance(error, pymysql.err.OperationalError):
        return error.args[0] in _ENDED
    return isinstance(error, pymysql.err.IntegrityError)


def _transfer(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    payer, payee = some_account(chance, accounts), some_account(chance, accounts)
    amount = chance.randrange(1, 5000) / 100
    for account, signed in ((payer, -amount), (payee, amount)):
        cursor.execute(
            "UPDATE accounts SET balance = balance + %s, updated_at = NOW(6) WHERE id = %s", (signed, account)
        )
        cursor.execute(
            "INSERT INTO ledger SELECT %s, COALESCE(MAX(entry), 0) + 1, %s, %s, NOW(3) "
            "FROM ledger WHERE account_id = %s",
            (account, signed, f"transfer {payer} to {payee}", account),
        )


def _ledger_rewrite(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    account = some_account(chance, accounts)
    cursor.execute("DELETE FROM ledger WHERE account_id = %s AND entry = 1", (account,))
    cursor.execute("UPDATE ledger SET entry = entry + 100000 WHERE account_id = %s AND entry = 2", (account,))


def _customer_rename(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    number = chance.randrange(1, max(2, accounts // 2))
    name = ["Anna", "bob", "Zoë", "李"][number % 4]
    email = f"{name}.{number}@example.com"
    kind = chance.randrange(4)
    if kind == 0:  # only the case changes: the collation has the same key, and the log has other bytes
        cursor.execute("UPDATE customers SET email = %s WHERE email = %s", (email.swapcase(), email))
    elif kind == 1:
        cursor.execute("DELETE FROM customers WHERE email = %s", (email,))
        cursor.execute("INSERT INTO customers VALUES (%s, 'back again', NULL, 'vip', NULL)", (email.upper(),))
    elif kind == 2:
        cursor.execute("REPLACE INTO customers VALUES (%s, 'replaced', '1999-12-31', '', '[1, 2.5]')", (email,))
    else:
        cursor.execute(
            "INSERT INTO customers VALUES (%s, 'upsert', NULL, 'new', NULL) "
            "ON DUPLICATE KEY UPDATE profile = JSON_OBJECT('visits', %s), tags = 'vip,new'",
            (email, chance.randrange(100)),
        )


def _session_churn(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    cursor.execute(
        "DELETE FROM sessions WHERE token = UNHEX(LEFT(SHA2(%s, 256), 32))", (chance.randrange(1, accounts),)
    )
    cursor.execute(
        "INSERT INTO sessions VALUES (%s, %s, %s, SEC_TO_TIME(%s), NULL)",
        (chance.randbytes(15) + b"\0", some_account(chance, accounts), chance.random(), chance.randrange(9000)),
    )


def _clicks(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    for _ in range(chance.randrange(1, 4)):
        row = (some_account(chance, accounts), f"/page/{chance.randrange(5)}", chance.random())
        cursor.execute("INSERT INTO clicks VALUES (%s, %s, %s, NOW())", row)
    cursor.execute("DELETE FROM clicks WHERE account_id = %s LIMIT 1", (some_account(chance, accounts),))


KINDS: dict[Transaction, int] = {
    _transfer: 6,
    _ledger_rewrite: 1,
    _customer_rename: 2,
    _session_churn: 2,
    _clicks: 1,
    rolled_back: 1,
}
"""The kinds of changes, with their weights."""
