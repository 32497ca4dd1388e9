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
        """From now on there is no room; whether that could be had."""
        if self._small is not None:
            self._small.fill()
        return self._small is not None

    def make_room(self) -> None:
        """The end of `fill`."""
        if self._small is not None:
            self._small.make_room()

    def names(self) -> set[str]:
        """What lies in it."""
        return {os.path.join(at, name) for at, _, names in os.walk(self._folder) for name in names}  # noqa: PTH118

    def deny(self) -> bool:
        """From now on nothing can be made, moved or removed below it; whether that could be had."""
        return self._change("+i", "a-w")

    def allow(self) -> None:
        """The end of `deny`."""
        self._change("-i", "u+w")

    def _change(self, attribute: str, mode: str) -> bool:
        # What root may do is not limited by modes.
        how = ["chattr", "-R", attribute] if os.geteuid() == 0 else ["chmod", "-R", mode]
        return subprocess.run([*how, self._folder], capture_output=True, check=False).returncode == 0


class Store:
    """An S3; ``proxy`` stands between it and the processes that work. The test itself asks the store directly."""

    def __init__(self, endpoint: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self.own_environment = s3_environment(endpoint)
        self.environment = s3_environment(f"http://{proxy.host}:{proxy.port}")
        """What has processes find it by way of the proxy."""

    def answer(self, status: int, seconds: float) -> None:
        """For so long it answers everything with this HTTP status."""
        self.proxy.go_down(seconds, f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())


@contextmanager
def store() -> Iterator[Store]:
    """A store of its own."""
    with tempfile.TemporaryDirectory(prefix="cdc-chaos-s3-") as directory, s3_server(Path(directory)) as endpoint:
        port = urlsplit(endpoint).port
        assert port is not None
        with Proxy(port) as proxy:
            yield Store(endpoint, proxy)
