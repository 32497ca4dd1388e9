"""Sessions inherit nothing that alters a read, both drivers connect alike, and errors have hints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LoginRefused,
    SchemaChanged,
    SourceUnavailable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import (
    literal,
    query,
    quote,
    read,
    reading_session,
    run,
    session,
    value,
)
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.log.reading import settings as settings_of
from tests.sources.postgres.tls import switch_tls_on

PASSWORD = "p/:@ %&?#='\\ü"
Open = Callable[[ConnectionSettings], AbstractContextManager[Any]]


@pytest.fixture
def settings(postgres: PostgresServer, database: str) -> Iterator[ConnectionSettings]:
    """The settings of a user for whom everything that can be set is set wrongly."""
    role = f"{database} \"odd\" 'user'"
    postgres.query(f"CREATE ROLE {quote(role)} LOGIN PASSWORD {literal(PASSWORD)}")
    for setting in (
        "TimeZone = 'Asia/Kolkata'",
        "DateStyle = 'German'",
        "IntervalStyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "extra_float_digits = -5",
        "search_path = 'nowhere'",
        "statement_timeout = '10ms'",
        "default_transaction_read_only = on",
        "enable_tidscan = off",
        "row_security = on",
        "quote_all_identifiers = on",
        "array_nulls = off",
        "gin_fuzzy_search_limit = 10",
    ):
        postgres.query(f"ALTER ROLE {quote(role)} SET {setting}")
    yield dataclasses.replace(settings_of(postgres, database), user=role, password=PASSWORD)
    postgres.query(f"DROP ROLE {quote(role)}")


SHOWN = (
    "concat_ws('|', now()::timestamptz(0)::text ~ '[+]00$', DATE '2020-02-01', INTERVAL '1 day', '\\x01'::bytea, "
    "0.1::float4, '{NULL}'::text[] = ARRAY[NULL]::text[])"
)


def test_what_a_role_sets_for_itself_changes_no_value_on_either_way(settings: ConnectionSettings) -> None:
    with session(settings) as control, reading_session(settings) as reading:
        (batch,) = read(reading, f"SELECT {SHOWN} AS shown, current_setting('statement_timeout') AS waits")
        assert value(control, SHOWN) == batch["shown"][0].as_py() == "t|2020-02-01|P1D|\\x01|0.1|t"
        assert value(control, "current_setting('statement_timeout')") == batch["waits"][0].as_py() == "0"
        assert value(control, "current_setting('enable_tidscan')") == "on"


def test_an_index_gives_all_rows_that_it_is_asked_for(
    settings: ConnectionSettings, postgres: PostgresServer, database: str
) -> None:
    """With btree_gin, conditions on numbers and times are answered by such an index, too."""
    postgres.query(
        "CREATE TABLE notes (tags int[]); INSERT INTO notes SELECT ARRAY[i % 2] FROM generate_series(1, 20000) i;"
        f"CREATE INDEX ON notes USING gin (tags); GRANT SELECT ON notes TO {quote(settings.user)}",
        database=database,
    )
    found = "(SELECT count(*) FROM public.notes WHERE tags @> ARRAY[1])"
    with session(settings) as control, reading_session(settings) as reading:
        query(control, "SET enable_seqscan = off")
        assert value(control, found) == 10_000
        run(reading, "SET enable_seqscan = off")
        (batch,) = read(reading, f"SELECT {found} AS found")
        assert batch["found"][0].as_py() == 10_000
    limited = f"SET enable_seqscan = off; SET gin_fuzzy_search_limit = 10; SELECT {found}"
    assert postgres.query(limited, database=database)[0][0] < 10_000, "the index is not used: the test provokes nothing"
    postgres.query("DROP TABLE notes", database=database)


def changed(settings: ConnectionSettings, **fields: Any) -> ConnectionSettings:
    return dataclasses.replace(settings, **fields)


@pytest.mark.parametrize("way", [session, reading_session, lambda settings: session(settings, replication=True)])
def test_a_connection_that_cannot_work_says_what_to_fix(
    way: Open, settings: ConnectionSettings, postgres: PostgresServer
) -> None:
    postgres.query(f"ALTER ROLE {quote(settings.user)} REPLICATION")
    cases: list[tuple[ConnectionSettings, type[CdcError], str]] = [
        (changed(settings, password="wrong"), LoginRefused, "refuses this user or password"),
        (changed(settings, user="nobody at all"), LoginRefused, "refuses this user or password"),
        (changed(settings, database="nowhere"), ConfigurationError, "no database 'nowhere'"),
        (changed(settings, tls={"mode": "required"}), ConfigurationError, "TLS"),
        (changed(settings, tls={"mode": "verify_ca", "ca": "/nowhere.pem"}), ConfigurationError, "TLS"),
        (changed(settings, tls={"mode": "prefer"}), ConfigurationError, "mode 'prefer'"),
        (changed(settings, port=1), SourceUnavailable, "does not answer"),
    ]
    for wrong, error, said in cases:
        with pytest.raises(error, match=said) as refused, way(wrong):
            pass
        assert refused.value.hint
        assert PASSWORD not in str(refused.value)
    with way(settings):
        pass


ERRORS: dict[str, tuple[type[CdcError], str]] = {
    "SELECT * FROM pg_catalog.pg_authid": (ConfigurationError, "permission denied"),
    "SELECT * FROM public.nothing": (SchemaChanged, "does not exist"),
    "SELECT nothing FROM pg_catalog.pg_class": (SchemaChanged, "does not exist"),
    "SELECT 1 / (oid::int - oid::int) FROM pg_catalog.pg_class": (TerminalError, "division by zero"),
    "SELECT pg_catalog.repeat('x', 1073741824)": (TerminalError, "(?s)too large.*1 GB"),
    "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())": (SourceUnavailable, "terminating"),
    "SELECT pg_catalog.pg_cancel_backend(pg_catalog.pg_backend_pid()), pg_catalog.pg_sleep(5)": (
        TransientError,
        "cancel",
    ),
}


@pytest.mark.parametrize(("statement", "expected"), ERRORS.items())
def test_both_drivers_raise_the_same_error(
    statement: str, expected: tuple[type[CdcError], str], settings: ConnectionSettings, postgres: PostgresServer
) -> None:
    postgres.query(f"ALTER ROLE {quote(settings.user)} REPLICATION")
    error, said = expected
    with pytest.raises(error, match=said) as by_control, session(settings) as control:
        query(control, statement)
    with pytest.raises(error, match=said) as by_reading, reading_session(settings) as reading:
        list(read(reading, statement))
    assert type(by_control.value) is type(by_reading.value)


def test_a_server_that_is_full_can_be_retried(postgres_factory: PostgresFactory) -> None:
    server = postgres_factory({"max_connections": "5", "superuser_reserved_connections": "0", "max_wal_senders": "0"})
    settings = settings_of(server, "postgres")
    held = [server.connect()]
    # The process of the session that checked the server may still exist for a moment.
    there = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    soon(lambda: held[0].execute(there).fetchall(), [(1,)])
    held += [server.connect() for _ in range(4)]
    for way in (session, reading_session):
        with pytest.raises(SourceUnavailable, match="fewer Spark tasks"), way(settings):
            pass
    for connection in held:
        connection.close()


def test_tls_is_checked_as_far_as_it_was_asked_for(postgres_factory: PostgresFactory, tmp_path: Path) -> None:
    server = postgres_factory()
    authority = tmp_path / "ca.pem"
    switch_tls_on(server, authority)
    settings = settings_of(server, "postgres")
    ca = str(authority)
    # The process of the session before may be there for a moment yet.
    sessions = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'airflow%'"
    for way in (session, reading_session):
        for tls in ({}, {"mode": "required"}, {"ca": ca}, {"mode": "verify_ca", "ca": ca}):
            with way(changed(settings, tls=tls)):
                soon(lambda: server.query(sessions), [(True,)])
        with (
            pytest.raises(ConfigurationError, match="TLS"),
            way(changed(settings, tls={"mode": "verify_identity", "ca": ca})),
        ):
            pass
        with way(changed(settings, tls={"mode": "disabled"})):
            pass


def test_settings_that_an_event_trigger_changes_at_login_are_not_blamed_on_a_pooler_alone(
    postgres_factory: PostgresFactory,
) -> None:
    newest = max(one.major for one in installations())
    if newest < 17:
        pytest.skip("there are event triggers on login since PostgreSQL 17")
    server = postgres_factory(None, newest)
    server.query(
        "CREATE FUNCTION limit_all() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM set_config('statement_timeout', '1min', false); END $$"
    )
    server.query("CREATE EVENT TRIGGER limit_all ON login EXECUTE FUNCTION limit_all()")
    for way in (session, reading_session):
        with (
            pytest.raises(ConfigurationError, match="statement_timeout is 1min") as refused,
            way(settings_of(server, "postgres")),
        ):
            pass
        assert "an event trigger ON login" in refused.value.hint
