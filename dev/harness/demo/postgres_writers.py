"""The transactions of the demo's writers on PostgreSQL."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from harness.demo.stage import SCHEMA
from harness.demo.writers import Cursor, Session, Transaction, rolled_back, some_account


def session(connect: Callable[..., psycopg.Connection[Any]]) -> Session:
    """Return a function that opens sessions for `Writers`. Every second session uses synchronous_commit = off."""
    opened_before = 0

    @contextlib.contextmanager
    def opened() -> Iterator[psycopg.Connection[Any]]:
        nonlocal opened_before
        opened_before += 1
        with contextlib.closing(connect(autocommit=False)) as connection:
            connection.execute(f"SET search_path TO {SCHEMA}")
            connection.execute("SET lock_timeout = '2s'")
            connection.execute(f"SET synchronous_commit = {'on' if opened_before % 2 else 'off'}")
            connection.commit()
            yield connection

    return opened


def retried(error: Exception) -> bool:
    """Return whether an error only ends a transaction: a deadlock, a lock timeout, a duplicate key."""
    return isinstance(
        error, psycopg.errors.DeadlockDetected | psycopg.errors.LockNotAvailable | psycopg.errors.IntegrityError
    )


def _transfer(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    payer, payee = some_account(chance, accounts), some_account(chance, accounts)
    amount = chance.randrange(1, 5000)
    for account, signed in ((payer, -amount), (payee, amount)):
        cursor.execute(
            "UPDATE accounts SET balance = balance + %s / 100.0, updated_at = now() WHERE id = %s", (signed, account)
        )
        cursor.execute(
            "INSERT INTO ledger SELECT %s, coalesce(max(entry), 0) + 1, %s / 100.0, %s, now() "
            "FROM ledger WHERE account_id = %s",
            (account, signed, f"transfer {payer} to {payee}", account),
        )


def _ledger_rewrite(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    account = some_account(chance, accounts)
    cursor.execute("DELETE FROM ledger WHERE account_id = %s AND entry = 1", (account,))
    # The row moves to the other partition.
    cursor.execute("UPDATE ledger SET entry = entry + 100000 WHERE account_id = %s AND entry = 2", (account,))


def _customer_rename(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    number = chance.randrange(1, max(2, accounts // 2))
    name = ["Anna", "bob", "Zoë", "李"][number % 4]
    email = f"{name}.{number}@example.com"
    kind = chance.randrange(3)
    if kind == 0:
        cursor.execute("UPDATE customers SET email = %s WHERE email = %s", (email.swapcase(), email))
    elif kind == 1:
        cursor.execute("DELETE FROM customers WHERE email = %s", (email,))
        cursor.execute("INSERT INTO customers VALUES (%s, 'back again', NULL, '{vip}', NULL)", (email,))
    else:
        cursor.execute(
            "INSERT INTO customers VALUES (%s, 'upsert', NULL, '{new}', NULL) ON CONFLICT (email) "
            "DO UPDATE SET profile = jsonb_build_object('visits', %s::int), tags = '{vip,\"new one\"}'",
            (email, chance.randrange(100)),
        )


def _session_churn(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    cursor.execute(
        "DELETE FROM sessions WHERE token = substr(sha256(%s::text::bytea), 1, 16)", (chance.randrange(1, accounts),)
    )
    cursor.execute(
        "INSERT INTO sessions VALUES (%s, %s, %s, time '00:00' + %s * interval '1 second', NULL)",
        (chance.randbytes(15) + b"\0", some_account(chance, accounts), chance.random(), chance.randrange(9000)),
    )


def _clicks(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    for _ in range(chance.randrange(1, 4)):
        row = (some_account(chance, accounts), f"/page/{chance.randrange(5)}", chance.random())
        cursor.execute("INSERT INTO clicks VALUES (%s, %s, %s, date_trunc('second', now() AT TIME ZONE 'UTC'))", row)
    cursor.execute(
        "DELETE FROM clicks WHERE ctid IN (SELECT ctid FROM clicks WHERE account_id = %s LIMIT 1)",
        (some_account(chance, accounts),),
    )


KINDS: dict[Transaction, int] = {
    _transfer: 6,
    _ledger_rewrite: 1,
    _customer_rename: 2,
    _session_churn: 2,
    _clicks: 1,
    rolled_back: 1,
}
"""The kinds of changes, with their weights."""
