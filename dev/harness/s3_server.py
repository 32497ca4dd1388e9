"""A private S3 server on 127.0.0.1: SeaweedFS, with one bucket and its own credentials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from harness.errors import HarnessError
from harness.server_process import free_port

BUCKET = "lake"
ADMIN = ("AKIAADMIN", "s3cret-horse")
READER = ("AKIAREADER", "s3cret-mare")
"""Credentials that may only list and read."""

_START_SECONDS = 180
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
_CATALOG_PORT = "s3.port.iceberg"

_servers: dict[str, dict[str, int]] = {}
"""The ports of the servers that run, by their endpoint."""


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """Start a server in ``directory``, and yield its endpoint, in the form of AWS_ENDPOINT_URL."""
    rights = {"admin": (ADMIN, ["Admin", "Read", "Write", "List"]), "reader": (READER, ["Read", "List"])}
    identities = [
        {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
        for name, ((key, secret), actions) in rights.items()
    ]
    (directory / "s3.json").write_text(json.dumps({"identities": identities}))
    ports = {name: free_port() for port in _PORTS for name in (port, f"{port}.grpc")}
    ports[_CATALOG_PORT] = free_port()
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    command = [
        *("weed", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}", "-filer", "-s3"),
        *("-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=1000", "-s3.autoCreateBucket=false"),
        # The default is 1 % of the disk. Below it, each write waits for ever.
        "-volume.minFreeSpace=64MiB",
        *("-s3.port.lance=0", f"-s3.config={directory}/s3.json"),
        *(f"-{name}={port}" for name, port in ports.items()),
        *(f"-{part}.localSocket={directory}/{part}.sock" for part in ("filer", "s3")),
    ]
    if setpriv := shutil.which("setpriv"):
        # The kernel ends the server even if this process is killed without running its exit handlers.
        command = [setpriv, "--pdeathsig", "KILL", *command]
    log = directory / "weed.log"
    with log.open("wb") as output:
        # The server writes further logs to this folder.
        environment = {**os.environ, "TMPDIR": str(directory)}
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=output, env=environment)
    try:
        _make_bucket(process, endpoint, log)
        _servers[endpoint] = ports
        yield endpoint
    finally:
        _servers.pop(endpoint, None)
        # The data is no longer needed, and a clean shutdown is slow.
        process.kill()
        process.wait()
        for port in ports.values():
            # The folder of these sockets cannot be configured.
            for socket in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                socket.unlink(missing_ok=True)


def s3_environment(endpoint: str, credentials: tuple[str, str] = ADMIN) -> dict[str, str]:
    """Return the environment variables with which pyarrow.fs finds the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": credentials[0],
        "AWS_SECRET_ACCESS_KEY": credentials[1],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def make_catalog(endpoint: str, name: str) -> str:
    """Create a catalog of Iceberg tables, which is a bucket, and return the address of its REST interface."""
    ports = _servers[endpoint]
    servers = [
        f"-{part}=127.0.0.1:{ports[f'{part}.port']}.{ports[f'{part}.port.grpc']}" for part in ("master", "filer")
    ]
    command = f"s3tables.bucket -create -name {name} -account admin\n"
    done = subprocess.run(
        ["weed", "shell", *servers], input=command, capture_output=True, text=True, timeout=_START_SECONDS, check=False
    )
    if "ARN:" not in done.stdout:
        raise HarnessError(f"weed makes no table bucket: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return f"http://127.0.0.1:{ports[_CATALOG_PORT]}"


def _make_bucket(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    store = fs.S3FileSystem(
        access_key=ADMIN[0],
        secret_key=ADMIN[1],
        endpoint_override=endpoint,
        region="us-east-1",
        allow_bucket_creation=True,
    )
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise HarnessError(f"weed does not answer; its log ends with:\n{log.read_text()[-2000:]}")
        try:
            store.create_dir(BUCKET)
        except OSError:
            time.sleep(0.1)
        else:
            return
