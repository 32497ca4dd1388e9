"""The standing slot's publication, through which a run reads the log of copies that it rolls forward."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.publications import altered_members, members_state
from harness.postgres_server import PostgresServer
from tests.sources.postgres.log.reading import settings as settings_of

ALTERED = (
    ["ALTER PUBLICATION p DROP TABLE low", "ALTER PUBLICATION p ADD TABLE low"],
    ["ALTER PUBLICATION p DROP TABLE low"],
    ["ALTER PUBLICATION p DROP TABLE low", "ALTER PUBLICATION p ADD TABLE low WHERE (id > 0)"],
    ["ALTER PUBLICATION p SET (publish = 'insert')"],
    ["ALTER PUBLICATION p RENAME TO q", "ALTER PUBLICATION q RENAME TO p"],
    ["DROP PUBLICATION p"],
    ["DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE low, high"],
    ["DROP TABLE low", "ALTER PUBLICATION p DROP TABLE high"],
)
UNALTERED = (["DROP TABLE low"], ["DROP TABLE parted"], ["ALTER PUBLICATION p ADD TABLE other"], ["TRUNCATE low"])


@pytest.mark.parametrize(
    ("statements", "altered"), [*((one, True) for one in ALTERED), *((one, False) for one in UNALTERED)]
)
def test_dropped_partitions_do_not_alter_a_publication_and_everything_else_does(
    postgres: PostgresServer, database: str, statements: list[str], altered: bool
) -> None:
    postgres.query(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE other (id int PRIMARY KEY);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20);"
        "CREATE PUBLICATION p FOR TABLE low, high",
        database=database,
    )
    ((oids,),) = postgres.query(
        "SELECT string_agg(oid::int::text, ',') FROM pg_class WHERE relname IN ('low', 'high')", database=database
    )
    with session(settings_of(postgres, database)) as connection:
        before = members_state(connection, "p", oids)
        assert len(before.split()) == 3
        for statement in statements:
            postgres.query(statement, database=database)
        assert altered_members(connection, before, members_state(connection, "p", oids)) is altered
