"""A session on the server that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.mysql_server import MysqlServer
from tests.sources.mysql.log.reading import Connection


@pytest.fixture
def db(mysql: MysqlServer, schema: str) -> Iterator[Connection]:
    with mysql.connect(database=schema) as connection:
        yield connection
