"""Ports that are the same after a restart: bookmarks, connections and links go on working."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

from harness.server_process import free_port


class KeptPorts:
    """The ports of several servers on this machine, by name, as ``file`` has them.

    :param say: tells a person when one has to be another than before.
    """

    def __init__(self, file: Path, say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}

    def port(self, name: str, preferred: int = 0) -> int:
        """The port that ``name`` had before, or the preferred one the first time; another one if that is taken."""
        wanted = self._ports.get(name) or preferred
        if wanted and is_free(wanted):
            return self.keep(name, wanted)
        port = self.keep(name, free_port())
        if wanted:
            self._say(f"port {wanted} ({name}) is taken by another program: it is {port} from now on")
        return port

    def keep(self, name: str, port: int) -> int:
        """Record that ``name`` has this port."""
        self._ports[name] = port
        self._file.write_text(json.dumps(self._ports, indent=2))
        return port


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    with socket.socket() as probe:
        # What is left of connections that have ended is no reason.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False
