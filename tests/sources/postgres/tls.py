"""TLS certificates and settings for a server of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import postgres_tls
from harness.errors import HarnessError
from harness.postgres_server import PostgresServer


def switch_tls_on(server: PostgresServer, authority: Path) -> None:
    """`postgres_tls.switch_tls_on`. Skips the test if the server was built without TLS."""
    try:
        postgres_tls.switch_tls_on(server, authority)
    except HarnessError as error:
        pytest.skip(str(error))
