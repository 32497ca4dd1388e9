"""What preflight warns of on a self-managed server, and on a managed one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.steps import preflight as warnings
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy, changed_start_up
from tests.conftest import PostgresFactory
from tests.sources.postgres.log.reading import settings as settings_of


@pytest.mark.parametrize(
    ("version", "told"), [(150_007, "15.8"), (150_008, ""), (160_003, "16.4"), (160_004, ""), (170_000, "")]
)
def test_versions_whose_slots_may_miss_transactions_are_reported(
    version: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    warnings._warn_of_version(version)
    assert (f"upgrade to {told}" in caplog.text) == bool(told)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_settings_that_make_a_crash_costly_are_reported(
    postgres_factory: PostgresFactory, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    safe = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    server = postgres_factory(safe | {setting: "off"})
    server.query("CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL")
    with caplog.at_level(logging.WARNING):
        PostgresSource(settings_of(server, "postgres")).preflight(["public.stock"])
    told = [record.getMessage() for record in caplog.records if record.name == warnings.__name__]
    assert [line.split()[:3] for line in told] == [[setting, "is", "off:"]]


def test_transactions_that_write_for_long_are_named_before_a_slot_waits_for_them(
    postgres: PostgresServer, database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "_LONG_SECONDS", 0.2)
    postgres.query("CREATE TABLE stock (id int PRIMARY KEY)", database=database)
    source = PostgresSource(settings_of(postgres, database))
    with postgres.connect(database=database, autocommit=False) as writer:
        writer.execute("SELECT pg_sleep(0.3)")
        source.preflight(["public.stock"])
        named = f"session {writer.info.backend_pid} of"
        assert named not in caplog.text, "it has written nothing"
        writer.execute("INSERT INTO stock VALUES (1)")
        source.preflight(["public.stock"])
        assert named in caplog.text
        writer.rollback()


@pytest.fixture
def clerk(postgres: PostgresServer, database: str) -> Iterator[PostgresSource]:
    """A source whose user may do everything but replicate."""
    for statement in (
        "CREATE ROLE clerk LOGIN PASSWORD 'p'",
        f"GRANT CREATE ON DATABASE {database} TO clerk",
        "CREATE TABLE stock (id int PRIMARY KEY)",
        "ALTER TABLE stock REPLICA IDENTITY FULL",
        "ALTER TABLE stock OWNER TO clerk",
    ):
        postgres.query(statement, database=database)
    yield PostgresSource(dataclasses.replace(settings_of(postgres, database), user="clerk", password="p"))
    postgres.query("DROP OWNED BY clerk", database=database)
    postgres.query("DROP ROLE clerk")


def test_who_may_replicate_without_the_attribute_is_not_refused(
    postgres: PostgresServer, clerk: PostgresSource
) -> None:
    """As members of rds_replication may. Here a proxy logs the user in as one who may."""

    def as_superuser(parameters: dict[str, str]) -> dict[str, str]:
        return parameters | ({"user": "postgres"} if "replication" in parameters else {})

    with pytest.raises(PreflightError) as refused:
        clerk.preflight(["public.stock"])
    assert [(problem.where, problem.hint) for problem in refused.value.problems] == [
        ("REPLICATION", 'ALTER ROLE "clerk" REPLICATION')
    ]
    with Proxy(postgres.port, changed_start_up(as_superuser)) as server:
        behind = PostgresSource(dataclasses.replace(clerk.settings, port=server.port))
        assert len(behind.preflight(["public.stock"])) == 1


@pytest.mark.parametrize(
    ("role", "wal_level", "replication"),
    [
        (
            "rds_superuser",
            "rds.logical_replication = 1 in the DB (cluster) parameter group",
            "GRANT rds_replication TO",
        ),
        ("cloudsqlsuperuser", "the database flag cloudsql.logical_decoding = on", "REPLICATION"),
        ("azure_pg_admin", "the server parameter wal_level = logical", "REPLICATION"),
    ],
)
def test_hints_for_managed_servers_name_what_exists_there(
    postgres_factory: PostgresFactory, role: str, wal_level: str, replication: str
) -> None:
    # Since PostgreSQL 19, the level replica is enough.
    oldest = min(one.major for one in installations())
    server = postgres_factory({"wal_level": "replica", "max_replication_slots": "1"}, oldest)
    server.query(f"CREATE ROLE {role}; CREATE ROLE clerk LOGIN PASSWORD 'p'")
    settings = dataclasses.replace(settings_of(server, "postgres"), user="clerk", password="p")
    with pytest.raises(PreflightError) as refused:
        PostgresSource(settings).preflight(["public.*"])
    hints = {problem.where: problem.hint for problem in refused.value.problems}
    assert wal_level in hints["wal_level"]
    assert replication in hints["REPLICATION"]
    assert "ALTER SYSTEM" not in hints["max_replication_slots"]
