"""Ports that stay the same after a restart, so that bookmarks, connections and links still work."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

from harness.server_process import free_port


class KeptPorts:
    """The ports of several servers on this machine, by name. They are stored in ``file``.

    :param say: prints a message if a port had to change.
    """

    def __init__(self, file: Path, say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}

    def port(self, name: str, preferred: int = 0) -> int:
        """Return the last port of ``name``, the first time the preferred one. If it is in use, return another port."""
        wanted = self._ports.get(name) or preferred
        if wanted and is_free(wanted):
            return self.keep(name, wanted)
        port = self.keep(name, free_port())
        if wanted:
            self._say(f"port {wanted} ({name}) is in use by another program: using {port} from now on")
        return port

    def keep(self, name: str, port: int) -> int:
        """Record that ``name`` has this port."""
        self._ports[name] = port
        self._file.write_text(json.dumps(self._ports, indent=2))
        return port


def is_free(port: int) -> bool:
    """Return whether no program listens on a port of this machine."""
    with socket.socket() as probe:
        # Ignore connections that have ended (TIME_WAIT).
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False
