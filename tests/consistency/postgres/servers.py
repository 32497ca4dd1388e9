"""The servers of random histories: one server with writers for each installed version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.servers import throw_away_postgres

_RELEASED = 18
"""The newest version of which a release can be installed here. Of 19, there is a release candidate: `test_postgres_19`
has its hazards. It does not hold commits in the way that `held` needs."""
VERSIONS = sorted({one.major for one in installations() if one.major <= _RELEASED})
ENDS = sorted({installations()[0].major, VERSIONS[-1]})
"""The version that is used by default, and the newest."""
EVERY = [
    pytest.param(one, marks=[] if one in ENDS else pytest.mark.long)
    for one in sorted({installed.major for installed in installations()})
]
"""The values of a parameter of a test: all versions, of which only the ends are tested before a merge."""


@contextmanager
def primary_of(version: int, **options: str) -> Iterator[PostgresServer]:
    """A server whose logs and connections suffice for a history, its copies and its oracle."""
    with throw_away_postgres(version=version, options={"max_connections": "60", **options}) as server:
        yield server
