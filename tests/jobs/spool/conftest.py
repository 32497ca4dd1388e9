"""The servers of the tests of the spool, with their tables."""

from __future__ import annotations

import pytest

from tests.conftest import MysqlFactory, PostgresFactory
from tests.jobs.spool.spooled_run import Server, make_tables


@pytest.fixture(params=["mysql", "postgres"])
def server(request: pytest.FixtureRequest, mysql_factory: MysqlFactory, postgres_factory: PostgresFactory) -> Server:
    server = mysql_factory({}) if request.param == "mysql" else postgres_factory()
    make_tables(server)
    return server
