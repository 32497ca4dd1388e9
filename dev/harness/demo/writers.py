"""Writers that change the shop while it is copied.

Each writer has its own session, and runs transactions of all kinds: transfers between accounts with ledger entries,
inserts, deletes, re-inserts, updates of keys, upserts, rollbacks and savepoints. Money only moves between accounts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from harness.background import Background

Cursor = Any
Transaction = Callable[[Cursor, random.Random, int], None]
"""A part of a transaction. The integer is the number of accounts of the shop."""

Session = Callable[[], AbstractContextManager[Any]]
"""Opens a session: a DB-API connection for the shop, not in autocommit."""


class Writers(Background):
    """``count`` sessions that write until the block ends, at a target rate of ``per_second`` transactions/s in total.

    Use it as a context manager. ``committed`` is the number of committed transactions. An error in a writer is raised
    at the end of the block, unless ``retried`` returns True because it only ends a transaction (a deadlock, a duplicate
    key).
    """

    def __init__(
        self,
        session: Session,
        kinds: dict[Transaction, int],
        retried: Callable[[Exception], bool],
        *,
        accounts: int,
        count: int = 4,
        per_second: float = 400,
        seed: int = 1,
    ) -> None:
        super().__init__(count)
        self.committed = 0
        self._session = session
        self._kinds = kinds
        self._retried = retried
        self._accounts = accounts
        self._pause = count / per_second
        self._seed = seed

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        with self._session() as connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    for kind in chance.choices(
                        list(self._kinds), weights=list(self._kinds.values()), k=chance.choice([1, 1, 2])
                    ):
                        kind(cursor, chance, self._accounts)
                    connection.commit()
                    self.committed += 1
                except Exception as error:
                    connection.rollback()
                    if not self._retried(error):
                        raise
                self._stop.wait(max(0.0, self._pause - (time.monotonic() - started)))


def some_account(chance: random.Random, accounts: int) -> int:
    """Return the id of an account. Few accounts are used often, most of them rarely."""
    return 1 + int(accounts * chance.random() ** 2)


def rolled_back(cursor: Cursor, chance: random.Random, accounts: int) -> None:
    """Make a change that its own transaction rolls back."""
    cursor.execute("SAVEPOINT before_the_mistake")
    cursor.execute("UPDATE accounts SET balance = 0 WHERE id = %s", (some_account(chance, accounts),))
    cursor.execute("ROLLBACK TO SAVEPOINT before_the_mistake")
