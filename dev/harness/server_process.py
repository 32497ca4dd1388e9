"""A private server on 127.0.0.1 in a directory of its own: what is the same for every kind of database."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypedDict, Unpack

from harness.cache import cache_directory
from harness.errors import HarnessError

START_SECONDS = 180
STOP_SECONDS = 180
"""Machines that are busy with other tests take many times what a quiet one takes."""


PORT_TRIES = 5
"""A program of somebody else may take a port between our look at it and the start of the server."""


class PortTaken(HarnessError):
    """Another program has the server's port."""


class StartArguments(TypedDict, total=False):
    """What each kind of server can be started with."""

    port: int | None
    options: Mapping[str, str | None] | None
    """Settings of the server, over its class's defaults. None: a MySQL option without a value."""
    version: int | None
    """The major version; of MySQL there is only one."""
    detached: bool
    """It outlives this process."""


class ServerProcess(ABC):
    """One running server. It ends with this process, and with the thread that started it, unless it is ``detached``.

    ``directory`` holds its data (``data``), its log, and of a detached server what `recorded` reads.
    """

    program: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    """Shuts the server down cleanly, whoever is connected."""
    kill_signal: ClassVar[signal.Signals]

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        options: Mapping[str, str | None] | None = None,
        version: int | None = None,
        detached: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self.pid = 0
        self._options = _normal(options)
        self._detached = detached
        self._process: subprocess.Popen[bytes] | None = None
        self._find_binaries(version)

    @classmethod
    def start(cls, directory: Path, **arguments: Unpack[StartArguments]) -> Self:
        """Start a server in `directory`, on the data it left there or on a fresh, empty data directory.

        The server ends with this process, and with the thread that called, unless it is `detached`.
        Raises HarnessError if it does not answer.
        """
        server = cls(directory, **arguments)
        server._prepare_data()
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                server._launch()
                break
            except PortTaken:
                if arguments.get("port") or not tries_left:
                    raise
                server.port = free_port()
        return server

    @classmethod
    def attach(cls, directory: Path) -> Self | None:
        """The detached server that runs in `directory`, or None."""
        if (state := recorded(directory.absolute())) is None:
            return None
        server = cls(directory, port=state["port"], options=state["options"], detached=True)
        server.pid = state["pid"]
        return server if server._running() else None

    @property
    @abstractmethod
    def url(self) -> str:
        """How to reach it as its superuser, who has no password."""

    @property
    def data(self) -> Path:
        """The server's data directory."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The server's error log."""
        return self.directory / "error.log"

    def restart(self, options: Mapping[str, str | None] | None = None) -> None:
        """Stop, and start on the same data and port; `options` are laid over those of `start`."""
        self.stop()
        self._options |= _normal(options)
        self._launch()

    def stop(self) -> None:
        """Shut the server down and wait for its end. Does nothing if it does not run."""
        atexit.unregister(self.stop)
        if not self._running():
            return
        self._signal(self.stop_signal)
        if not self._ended_within(STOP_SECONDS):
            self._signal(self.kill_signal)
            self._ended_within(STOP_SECONDS)
        _record(self.directory).unlink(missing_ok=True)

    def kill(self) -> None:
        """End the server at once: its data is as good as after a crash."""
        self._signal(self.kill_signal)
        self._ended_within(STOP_SECONDS)
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _find_binaries(self, version: int | None) -> None:
        """Find the programs: of this major version, or of that which made the data, or of any."""

    @abstractmethod
    def _prepare_data(self) -> None:
        """Make the data directory unless it is there."""

    @abstractmethod
    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the program."""

    @abstractmethod
    def _answers_from(self) -> str | None:
        """The data directory of the server that answers on the port; None: there is none yet."""

    def _launch(self) -> None:
        self._process = self._spawn()
        self.pid = self._process.pid
        if not self._detached:
            atexit.register(self.stop)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        if self._detached:
            state = {"port": self.port, "pid": self.pid, "options": self._options}
            _record(self.directory).write_text(json.dumps(state))

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (answered := self._answers_from()) is None:
            if not self._running():
                tail = self._log_tail()
                kind = PortTaken if "address already in use" in tail.lower() else HarnessError
                raise kind(f"{self.program} ended at once; see {self.log}:\n{tail}")
            if time.monotonic() > deadline:
                raise HarnessError(
                    f"{self.program} does not answer after {START_SECONDS} s; see {self.log}:\n{self._log_tail()}"
                )
            time.sleep(0.05)
        if Path(answered) != self.data:
            raise PortTaken(f"port {self.port} belongs to another server (its data is in {answered})")

    def _log_tail(self) -> str:
        if not self.log.exists():
            return "(no log was written)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        # A server that an earlier process started is not our child: make sure that the pid was not given to another.
        try:
            argv = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(part.endswith(str(self.data).encode()) for part in argv)

    def _signal(self, number: signal.Signals) -> None:
        # Once it has ended, another process may get its number.
        if self._running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _ended_within(self, seconds: float) -> bool:
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            return True
        deadline = time.monotonic() + seconds
        while self._running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def recorded(directory: Path) -> dict[str, Any] | None:
    """The ``port``, ``pid`` and ``options`` of the detached server that was last started in ``directory``."""
    try:
        state: dict[str, Any] = json.loads(_record(directory).read_text())
    except FileNotFoundError:
        return None
    return state


def free_port() -> int:
    """A port that nobody listens on, below the range from which the kernel hands out ports to clients.

    Nobody else is given it as long as this process lives: its server may take a while to start, or to start again.
    """
    # Not the generator that everybody shares: hypothesis seeds that one, in all processes alike.
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if _PORTS.take(port):
                return port


class _Ports:
    """The ports that processes of ours were given: each is a locked byte of one file, which the kernel lets go of when
    the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._taken: set[int] = set()
        self._file = -1

    def take(self, port: int) -> bool:
        """Whether nobody has it; it is this process's from now on."""
        with self._lock:
            if self._owner != os.getpid():
                # A child of the process that took the others has none of its locks.
                self._owner, self._taken = os.getpid(), set()
                self._file = os.open(cache_directory() / "ports.lock", os.O_RDWR | os.O_CREAT, 0o600)
            if port in self._taken:
                return False
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except BlockingIOError:
                return False
            self._taken.add(port)
            return True


_PORTS = _Ports()


def _normal(options: Mapping[str, str | None] | None) -> dict[str, str | None]:
    return {name.replace("-", "_"): value for name, value in (options or {}).items()}


def _record(directory: Path) -> Path:
    return directory / "server.json"
