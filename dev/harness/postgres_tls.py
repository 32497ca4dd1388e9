"""TLS for a PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg

from harness.errors import HarnessError
from harness.postgres_server import PostgresServer


def switch_tls_on(server: PostgresServer, authority: Path) -> None:
    """Restart ``server`` with a self-signed certificate for a host called ``elsewhere``. Copy it to ``authority``.

    :raises HarnessError: the server was built without TLS, as the servers of the pinned wheel are.
    """
    key, certificate = server.data / "server.key", server.data / "server.crt"
    subprocess.run(
        [
            *("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=elsewhere".split()),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    authority.write_bytes(certificate.read_bytes())
    key.chmod(0o600)
    for path in (key, certificate):
        owner = server.data.stat()
        if path.stat().st_uid != owner.st_uid:
            os.chown(path, owner.st_uid, owner.st_gid)
    try:
        server.query("ALTER SYSTEM SET ssl = on")
    except psycopg.errors.InvalidParameterValue as error:
        raise HarnessError("this PostgreSQL server was built without TLS") from error
    server.restart()
