"""Writers that keep the shop busy while it is copied.

Each writer is a session of its own that runs transactions of every kind the log knows: transfers between accounts with
ledger entries, inserts, deletes, re-inserts, updates of keys (case only, too), REPLACE, ON DUPLICATE KEY, rollbacks and
savepoints. Money is only ever moved.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pymysql

from harness import shop

Cursor = Any
RETRIED = (
    1205,
    1213,
)  # lock wait timeout, deadlock: both end the statement or transaction, and neither is an error here


class Writers:
    """``count`` sessions writing until the block ends; together they aim at ``per_second`` transactions a second.

    Use it as a context manager; ``committed`` counts. An error in a writer is raised at the end of the block.
    """

    def __init__(
        self,
        connect: Callable[[], pymysql.Connection],
        *,
        accounts: int,
        count: int = 4,
        per_second: float = 400,
        seed: int = 1,
    ) -> None:
        self.committed = 0
        self._accounts = accounts
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(
                target=self._write,
                args=(connect, random.Random(f"{seed}/{number}"), count / per_second),
                daemon=True,
            )
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures and error is None:
            raise self._failures[0]

    def _write(self, connect: Callable[[], pymysql.Connection], chance: random.Random, pause: float) -> None:
        try:
            with contextlib.closing(connect()) as connection, connection.cursor() as cursor:
                connection.autocommit(False)
                cursor.execute(f"USE {shop.SCHEMA}")
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 2, time_zone = '+00:00'")
                while not self._stop.is_set():
                    started = time.monotonic()
                    try:
                        self._transaction(cursor, chance)
                        connection.commit()
                        self.committed += 1
                    except (pymysql.err.OperationalError, pymysql.err.IntegrityError) as error:
                        connection.rollback()
                        if isinstance(error, pymysql.err.OperationalError) and error.args[0] not in RETRIED:
                            raise
                    self._stop.wait(max(0.0, pause - (time.monotonic() - started)))
        except BaseException as error:
            self._failures.append(error)

    def _transaction(self, cursor: Cursor, chance: random.Random) -> None:
        kinds = [_transfer, _ledger_rewrite, _customer_rename, _session_churn, _clicks, _rolled_back]
        for kind in chance.choices(kinds, weights=[6, 1, 2, 2, 1, 1], k=chance.choice([1, 1, 2])):
            kind(cursor, chance, self._accounts)


def _transfer(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    payer, payee = _account(chance, accounts), _account(chance, accounts)
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
    account = _account(chance, accounts)
    cursor.execute("DELETE FROM ledger WHERE account_id = %s AND entry = 1", (account,))
    cursor.execute("UPDATE ledger SET entry = entry + 100000 WHERE account_id = %s AND entry = 2", (account,))


def _customer_rename(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    number = chance.randrange(1, max(2, accounts // 2))
    name = ["Anna", "bob", "Zoë", "李"][number % 4]
    email = f"{name}.{number}@example.com"
    kind = chance.randrange(4)
    if kind == 0:  # only the case changes: the same key to the collation, other bytes in the log
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
        (chance.randbytes(15) + b"\0", _account(chance, accounts), chance.random(), chance.randrange(9000)),
    )


def _clicks(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    for _ in range(chance.randrange(1, 4)):
        row = (_account(chance, accounts), f"/page/{chance.randrange(5)}", chance.random())
        cursor.execute("INSERT INTO clicks VALUES (%s, %s, %s, NOW())", row)
    cursor.execute("DELETE FROM clicks WHERE account_id = %s LIMIT 1", (_account(chance, accounts),))


def _rolled_back(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    cursor.execute("SAVEPOINT before_the_mistake")
    cursor.execute("UPDATE accounts SET balance = 0 WHERE id = %s", (_account(chance, accounts),))
    cursor.execute("ROLLBACK TO SAVEPOINT before_the_mistake")


def _account(chance: random.Random, accounts: int) -> int:
    # Squared: a few accounts are busy, most are not, as in life.
    return 1 + int(accounts * chance.random() ** 2)
