"""The common base class of private servers on 127.0.0.1, each in its own directory."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import random
import re
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
"""A machine that is busy with other tests takes many times as long as an idle one."""


PORT_TRIES = 5
"""The number of tries: another program may take a port between the check of the port and the start of the server."""


class PortTaken(HarnessError):
    """Another program uses the server's port."""


class StartArguments(TypedDict, total=False):
    """The arguments with which each kind of server can be started."""

    port: int | None
    options: Mapping[str, str | None] | None
    """Settings of the server, which override the defaults of its class. None: a MySQL option without a value."""
    version: int | None
    """The major version. Only for PostgreSQL."""
    detached: bool
    """The server keeps running after the end of this process."""


class ServerProcess(ABC):
    """A running server. It ends with this process, and with the thread that started it, unless it is ``detached``.

    ``directory`` has its data (``data``), its log and, for a detached server, the record that `recorded` reads.
    """

    program: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    """The signal that shuts the server down cleanly, even if sessions are connected."""
    kill_signal: ClassVar[signal.Signals]
    crashes: ClassVar[re.Pattern[str]]
    """What the server's log has if one of its processes crashed. SIGKILL is no crash, because tests send it."""

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
        """Start a server in `directory`, with the existing data or a new, empty data directory.

        The server ends with this process, and with the calling thread, unless it is `detached`.
        Raises HarnessError if the server does not answer.
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
        """Return the detached server that runs in `directory`, or None."""
        if (state := recorded(directory.absolute())) is None:
            return None
        server = cls(directory, port=state["port"], options=state["options"], detached=True)
        server.pid = state["pid"]
        return server if server._running() else None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the server for its superuser, who has no password."""

    @property
    def data(self) -> Path:
        """The server's data directory."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The server's error log."""
        return self.directory / "error.log"

    def restart(self, options: Mapping[str, str | None] | None = None) -> None:
        """Stop the server, and start it with the same data and port. `options` override the options of `start`."""
        self.stop()
        self._options |= _normal(options)
        self._launch()

    def stop(self) -> None:
        """Shut the server down if it runs, and wait for its end.

        Raises HarnessError if the server or one of its processes has crashed since `start`: nothing that a test does
        may crash a server.
        """
        atexit.unregister(self.stop)
        if self._running():
            self._signal(self.stop_signal)
            if not self._ended_within(STOP_SECONDS):
                self._signal(self.kill_signal)
                self._ended_within(STOP_SECONDS)
            _record(self.directory).unlink(missing_ok=True)
        if not self._detached:
            self._check_for_crashes()

    def kill(self) -> None:
        """Kill the server. Its data is in the same state as after a crash."""
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
        """Find the programs: of this major version, or of the version that made the data, or of any version."""

    @abstractmethod
    def _prepare_data(self) -> None:
        """Make the data directory if it does not exist."""

    @abstractmethod
    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the server program."""

    @abstractmethod
    def _answers_from(self) -> str | None:
        """Return the data directory of the server that answers on the port; None: no server answers yet."""

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

    def _check_for_crashes(self) -> None:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        if (crash := self.crashes.search(text)) is not None:
            lines = text[text.rfind("\n", 0, crash.start()) + 1 :].splitlines()[:15]
            raise HarnessError(f"{self.program} has crashed; see {self.log}:\n" + "\n".join(lines))

    def _log_tail(self) -> str:
        if not self.log.exists():
            return "(no log was written)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        # A server that an earlier process started is not a child of this process, so its pid may have been reused.
        try:
            argv = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(part.endswith(str(self.data).encode()) for part in argv)

    def _signal(self, number: signal.Signals) -> None:
        # After its end, another process may get its pid.
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
    """Return the ``port``, ``pid`` and ``options`` of the detached server that was last started in ``directory``."""
    try:
        state: dict[str, Any] = json.loads(_record(directory).read_text())
    except FileNotFoundError:
        return None
    return state


def free_port() -> int:
    """Return a free port, below the range from which the kernel assigns ports to clients.

    No other process gets this port from here while this process runs, because its server may take some time to start or
    restart.
    """
    # Not the shared generator: hypothesis seeds it with the same seed in all processes.
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if _PORTS.take(port):
                return port


class _Ports:
    """The ports that `free_port` has given to processes. Each port is a locked byte of one file. The kernel releases
    the lock when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._taken: set[int] = set()
        self._file = -1

    def take(self, port: int) -> bool:
        """Try to reserve the port for this process, and return whether this succeeded."""
        with self._lock:
            if self._owner != os.getpid():
                # A forked child does not inherit the locks of its parent.
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


def process_state(folder: Path) -> str:
    """Return the state letter of a process or thread, given its folder in /proc; "X": it is gone. See proc(5)."""
    try:
        # The state follows the name in parentheses.
        return (folder / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "X"
