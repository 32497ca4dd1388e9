"""Writers that keep the shop busy while it is copied.

Each writer is a session of its own that runs transactions of every kind the log knows: transfers between accounts with
ledger entries, inserts, deletes, re-inserts, updates of keys, upserts, rollbacks and savepoints. Money is only ever
moved.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

Cursor = Any
Transaction = Callable[[Cursor, random.Random, int], None]
"""Part of a transaction on a shop with that many accounts."""

Session = Callable[[], AbstractContextManager[Any]]
"""Opens a session: a DB-API connection, not in autocommit, that is set up for the shop."""


class Writers:
    """``count`` sessions writing until the block ends; together they aim at ``per_second`` transactions a second.

    Use it as a context manager; ``committed`` counts. An error in a writer is raised at the end of the block, unless
    ``retried`` says that it only ends a transaction (a deadlock, a duplicate key).
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
        self.committed = 0
        self._session = session
        self._kinds = kinds
        self._retried = retried
        self._accounts = accounts
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(
                target=self._write, args=(random.Random(f"{seed}/{number}"), count / per_second), daemon=True
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

    def _write(self, chance: random.Random, pause: float) -> None:
        try:
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
                    self._stop.wait(max(0.0, pause - (time.monotonic() - started)))
        except BaseException as error:
            self._failures.append(error)


def some_account(chance: random.Random, accounts: int) -> int:
    """The id of an account. A few are busy, most are not, as in life."""
    return 1 + int(accounts * chance.random() ** 2)
