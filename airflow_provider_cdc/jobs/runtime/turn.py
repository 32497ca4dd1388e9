"""The tasks' side of control: a task asks, between two chunks, whether it may go on reading."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.effective import READERS, UNLIMITED, Effective
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError

READ_SECONDS = 2.0
"""How often a worker reads the record of what it may do."""
NOTE_SECONDS = 5.0
"""How often a reader renews its note."""
SILENT_SECONDS = 600.0
"""The time for which a reader keeps its turn while the server returns nothing."""
_SLEEP_SECONDS = 0.25
_LONGEST_REST = 60.0
"""The longest rest, in seconds, to which the governor leads between two chunks."""

LONGEST_IDLE = 300.0
"""The longest time, in seconds, for which a session stays open without a statement, because servers and networks end
idle sessions. A task that rests for longer closes its session. A transaction goes on earlier instead."""


class GivenUp(Exception):
    """A read that cannot be interrupted was given up, because the run is paused. The read begins again afterwards."""


@dataclass
class _Worker:
    """What this process knows about one run. It outlives a task, because a worker executes many small tasks."""

    known: Effective = UNLIMITED
    read_at: float = float("-inf")
    noted: float = float("-inf")
    began: float = 0.0
    ended: float = 0.0
    rows: int = 0
    heard: float = float("-inf")
    reading: bool = False
    noting: threading.Thread | None = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    """Two containers on one machine may have the same host name and the same process ids."""
    lock: threading.Lock = field(default_factory=threading.Lock)


_workers: dict[str, _Worker] = {}


class ReadTurn:
    """Asks whether the task of this process may read.

    :param folder: the folder of the run.
    :param release: is called before the task waits for long. It must release what the task holds on the source, and
        make finished work durable.
    """

    def __init__(self, folder: Storage, release: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._release = release
        self._worker = _workers.setdefault(folder.uri, _Worker())
        self._name = re.sub(r"[^\w.-]", "_", f"{socket.gethostname()}-{os.getpid()}-{self._worker.token}")

    @property
    def _note_name(self) -> str:
        return f"{READERS}/{self._name}.json"

    def wait(self) -> None:
        """Wait until the task may begin to read. No session may be in use.

        If the run was stopped, the task waits until the driver ends it.
        """
        released = self._worker.reading = False
        while True:
            while self._must_wait():
                if not released:
                    self._release()
                    released = True
                time.sleep(_SLEEP_SECONDS)
            if not released and self._due(begun=False) - time.monotonic() > LONGEST_IDLE:
                self._release()
                released = True
            self._rest(begun=False)
            if not self._must_wait():
                return

    def began(self) -> None:
        """Note that a chunk is about to be read."""
        self._worker.began = time.monotonic()
        self._keep_turn()

    def ended(self, rows: int) -> None:
        """Note that a chunk with this number of rows was read. If it is the last one of the task, the next task of this
        process rests for it."""
        self._worker.reading = False
        self._worker.rows, self._worker.ended = rows, time.monotonic()

    def beat(self) -> None:
        """Call this for each batch of a chunk, so that a long chunk does not lose its turn."""
        self._worker.heard = time.monotonic()
        if self._worker.known.limited:
            self._note()

    def may_go_on(self, rows: int, *, in_transaction: bool) -> bool:
        """Return, after a chunk with this number of rows, whether the task may read the next chunk in its session. It
        rests first, if a limit or the governor requires it. If the result is False, close the session, and `wait`.

        :param in_transaction: whether all chunks are read in one transaction. Only an operator interrupts such a read,
            because it must begin again, and the governor does not prolong it.
        :raises GivenUp: the run is paused or stopped, and the chunks are read in one transaction.
        """
        self.ended(rows)
        if in_transaction:
            self._rest(begun=True)
            self._give_up()
            return True
        if self._due(begun=False) - time.monotonic() > LONGEST_IDLE:
            return False
        self._rest(begun=False)
        return not self._must_wait()

    def check(self) -> None:
        """Give up a read that cannot be interrupted otherwise, if the run is paused.

        :raises GivenUp: the run is paused or stopped.
        """
        self.beat()
        self._give_up()
        self._keep_turn()

    def leave(self) -> None:
        """Note that the task reads no more."""
        with self._worker.lock:
            self._worker.reading = False
            if self._worker.noted > float("-inf"):
                self._worker.noted = float("-inf")
                with suppress(CdcError, OSError, pa.ArrowException):
                    self._folder.delete_file(self._note_name)

    def _keep_turn(self) -> None:
        """Renew the note in another thread. A slow server may return the first batch only after a minute. Another
        reader in this time would be one too many, and increase the load."""
        worker = self._worker
        worker.heard, worker.reading = time.monotonic(), True
        if worker.known.limited and (worker.noting is None or not worker.noting.is_alive()):
            worker.noting = threading.Thread(target=self._renew, name="note", daemon=True)
            worker.noting.start()

    def _renew(self) -> None:
        worker, never = self._worker, threading.Event()
        while not never.wait(NOTE_SECONDS) and worker.reading and time.monotonic() - worker.heard < SILENT_SECONDS:
            with worker.lock:
                if worker.reading and worker.known.limited:
                    self._write_note()

    def _must_wait(self) -> bool:
        known = self._read_effective()
        if known.state == effective.PAUSE:
            # Note again after the pause, because the driver then forgets all readers.
            self._worker.noted = float("-inf")
        elif known.limited:
            self._note()
        return known.state != effective.GO or (known.chosen and self._name not in known.readers)

    def _read_effective(self) -> Effective:
        worker = self._worker
        if time.monotonic() - worker.read_at >= READ_SECONDS:
            worker.read_at = time.monotonic()
            # If the store fails, the last known state applies.
            with suppress(CdcError, OSError, pa.ArrowException):
                worker.known = effective.read(self._folder)
        return worker.known

    def _give_up(self) -> None:
        if self._read_effective().state in (effective.PAUSE, effective.STOP):
            raise GivenUp

    def _due(self, *, begun: bool) -> float:
        """Return the time at which the last chunk is paid for.

        :param begun: whether a transaction is open. Then only the limit of rows counts.
        """
        worker, known = self._worker, self._read_effective()
        due = worker.began + worker.rows / known.rows_per_second if known.rows_per_second else 0.0
        if begun:
            return min(due, worker.ended + LONGEST_IDLE)
        if not known.share:
            return due
        rest = (worker.ended - worker.began) * (1 / known.share - 1)
        return max(due, worker.ended + min(rest, _LONGEST_REST))

    def _rest(self, *, begun: bool) -> None:
        """Sleep until the last chunk is paid for. The sleep ends early if the limits change, or the task must wait."""
        while (left := self._due(begun=begun) - time.monotonic()) > 0 and self._read_effective().state == effective.GO:
            self.beat()
            time.sleep(min(left, _SLEEP_SECONDS))

    def _note(self) -> None:
        worker = self._worker
        if time.monotonic() - worker.noted >= NOTE_SECONDS:
            self._write_note()

    def _write_note(self) -> None:
        self._worker.noted = time.monotonic()
        with suppress(CdcError, OSError, pa.ArrowException):
            self._folder.note_json(self._note_name, {"at": time.time()})
