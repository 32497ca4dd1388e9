"""The lakes of chaos tests: a local folder, or a store behind a proxy that fails as networks and stores do."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from harness.proxy import Proxy
from harness.s3_server import s3_environment, s3_server
from tests.small_disk import SmallDisk


class Disk:
    """A folder, which is there; on a ``small`` disk, if it is to be full."""

    def __init__(self, folder: Path, small: SmallDisk | None = None) -> None:
        self._folder = folder
        self._small = small

    def fill(self) -> bool:
        """Fill the store; return whether this is supported."""
        if self._small is not None:
            self._small.fill()
        return self._small is not None

    def make_room(self) -> None:
        """Free the space again."""
        if self._small is not None:
            self._small.make_room()

    def names(self) -> set[str]:
        """The paths of all files of the lake."""
        return {os.path.join(at, name) for at, _, names in os.walk(self._folder) for name in names}  # noqa: PTH118

    def deny(self) -> bool:
        """Make the lake read-only; return whether this is supported."""
        return self._change("+i", "a-w")

    def allow(self) -> None:
        """Make the lake writable again."""
        self._change("-i", "u+w")

    def _change(self, attribute: str, mode: str) -> bool:
        # What root may do is not limited by modes.
        how = ["chattr", "-R", attribute] if os.geteuid() == 0 else ["chmod", "-R", mode]
        return subprocess.run([*how, self._folder], capture_output=True, check=False).returncode == 0


class Store:
    """An S3 store. The processes of the run access it through ``proxy``, and the test itself directly."""

    def __init__(self, endpoint: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self.own_environment = s3_environment(endpoint)
        self.environment = s3_environment(f"http://{proxy.host}:{proxy.port}")
        """Environment variables that direct processes to the proxy."""

    def answer(self, status: int, seconds: float) -> None:
        """Answer every request with this HTTP status for ``seconds``."""
        self.proxy.go_down(seconds, f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())


@contextmanager
def store() -> Iterator[Store]:
    """A private store."""
    with tempfile.TemporaryDirectory(prefix="cdc-chaos-s3-") as directory, s3_server(Path(directory)) as endpoint:
        port = urlsplit(endpoint).port
        assert port is not None
        with Proxy(port) as proxy:
            yield Store(endpoint, proxy)
