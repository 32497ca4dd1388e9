"""Rows read from the socket are the same as by ADBC, in pieces of any size, and with every kind of end."""

from __future__ import annotations

import dataclasses
import ssl
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.kernels import Bytes, Int64s
from airflow_provider_cdc.errors import ConfigurationError, DecodeError, LoginRefused, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.decode import stream
from airflow_provider_cdc.sources.postgres.decode import stream as packets
from airflow_provider_cdc.sources.postgres.decode.rows import AdbcReader, CopyReader, open_rows
from airflow_provider_cdc.sources.postgres.server import verified_tls
from airflow_provider_cdc.sources.postgres.server.session import connect, mapped_errors, session
from harness.postgres_server import SUPERUSER, PostgresServer
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.backends import wait_for
from tests.sources.postgres.decode.reading import assert_same, describe, one_batch, select, settings
from tests.sources.postgres.tls import switch_tls_on

DATABASE = "postgres"


@pytest.fixture
def table(postgres: PostgresServer) -> Iterator[str]:
    postgres.query(
        "CREATE TABLE copied (id bigint PRIMARY KEY, small smallint, ratio real, name text, body bytea, ok boolean, "
        "day date, at timestamptz, price numeric(12,2), document jsonb, uid uuid)"
    )
    postgres.query(
        "INSERT INTO copied SELECT n, n % 100, n / 3.0, 'name ' || n, decode(md5(n::text), 'hex'), n % 2 = 0, "
        "date '2000-01-01' + n, timestamptz '2000-01-01 00:00+00' + n * interval '1 hour', n / 4.0, "
        "jsonb_build_object('n', n), md5(n::text)::uuid FROM generate_series(1, 3000) n"
    )
    postgres.query("INSERT INTO copied (id) VALUES (0)")
    yield "copied"
    postgres.query("DROP TABLE copied")


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 1000, 1 << 20])
def test_a_buffer_of_any_size(postgres: PostgresServer, table: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may cut rows and messages anywhere, and it grows if a row does not fit."""
    expected = select(postgres, DATABASE, describe(postgres, DATABASE, table))
    monkeypatch.setattr(stream, "_BUFFER", size)
    assert_same(select(postgres, DATABASE, describe(postgres, DATABASE, table)), expected)
    postgres.query("INSERT INTO copied (id, name) VALUES (-1, repeat('long ', 50000))")
    rows = select(postgres, DATABASE, describe(postgres, DATABASE, table))
    assert rows.num_rows == expected.num_rows + 1


def test_no_rows(postgres: PostgresServer, table: str) -> None:
    assert select(postgres, DATABASE, describe(postgres, DATABASE, table), "WHERE id > 9999").num_rows == 0


def test_a_statement_that_fails_halfway_gives_its_error_and_the_next_one_works(
    postgres: PostgresServer, table: str
) -> None:
    described = describe(postgres, DATABASE, table)
    with session(settings(postgres, DATABASE)) as connection:
        one = stream.CopyStream(stream.socket_of(connection), "copied")
        reader = CopyReader(one, described)
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(reader.read("public.copied WHERE 1 / (2999 - id) < 5"))
        one.run("ROLLBACK")
        assert sum(batch.num_rows for batch in reader.read("public.copied")) == 3001
        with pytest.raises(psycopg.errors.UndefinedTable):
            list(reader.read("nowhere"))
        with pytest.raises(psycopg.errors.SyntaxError):
            one.run("SELEKT")
        one.run("SELECT generate_series(1, 10)")
        assert sum(batch.num_rows for batch in reader.read("public.copied")) == 3001
        one.close()


def test_a_session_that_is_ended_halfway(postgres: PostgresServer, table: str) -> None:
    postgres.query("INSERT INTO copied (id, name) SELECT n, repeat('x', 1000) FROM generate_series(10000, 40000) n")
    described = describe(postgres, DATABASE, table)
    with mapped_errors("copied"), session(settings(postgres, DATABASE)) as connection:
        reader = CopyReader(stream.CopyStream(stream.socket_of(connection), "copied"), described)
        batches = reader.read("public.copied")
        next(batches)
        postgres.query("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with pytest.raises(SourceUnavailable), mapped_errors("copied"):
            list(batches)


@pytest.mark.slow
def test_notices_between_the_rows(postgres: PostgresServer, table: str) -> None:
    postgres.query(
        "CREATE FUNCTION loud(n bigint) RETURNS boolean LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE WARNING 'row %', n; RETURN true; END $$"
    )
    described = describe(postgres, DATABASE, table)
    with open_rows(settings(postgres, DATABASE), described) as reader:
        assert sum(batch.num_rows for batch in reader.read("public.copied WHERE public.loud(id)")) == 3001
    postgres.query("DROP FUNCTION loud")


@pytest.fixture
def encrypted(postgres_factory: PostgresFactory, tmp_path: Path) -> PostgresServer:
    """A server with TLS, and a user who needs both it and a password."""
    server = postgres_factory()
    switch_tls_on(server, tmp_path / "ca.pem")
    server.query("SET password_encryption = 'scram-sha-256'; CREATE ROLE reader LOGIN PASSWORD 's3cret'")
    hba = server.data / "pg_hba.conf"
    hba.write_text("hostssl all reader all scram-sha-256\nhostnossl all reader all reject\n" + hba.read_text())
    server.reload()
    server.query("CREATE TABLE t (id int PRIMARY KEY, name text); GRANT SELECT ON t TO reader")
    server.query("INSERT INTO t SELECT n, 'name ' || n FROM generate_series(1, 1000) n")
    return server


@pytest.mark.parametrize(
    ("tls", "kind"),
    [
        ({"mode": "required"}, AdbcReader),
        ({"mode": "verify_ca", "ca": "{ca}"}, CopyReader),
        ({"ca": "{ca}", "channel_binding": "disable"}, CopyReader),
        ({"ca": "{ca}", "channel_binding": "require"}, AdbcReader),
        ({"mode": "disabled"}, CopyReader),
    ],
)
def test_an_encrypted_session_gives_the_same_rows(
    encrypted: PostgresServer, tmp_path: Path, tls: dict[str, str], kind: type
) -> None:
    described = describe(encrypted, DATABASE, "t")
    tls = {name: value.format(ca=tmp_path / "ca.pem") for name, value in tls.items()}
    login = ("reader", "s3cret") if tls.get("mode") != "disabled" else (SUPERUSER, "")
    one = ConnectionSettings("postgres", encrypted.host, encrypted.port, *login, DATABASE, tls)
    with open_rows(one, described) as reader:
        assert isinstance(reader, kind)
        assert encrypted.query(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
            "WHERE application_name LIKE 'airflow%'"
        ) == [(tls.get("mode") != "disabled",)]
        rows = one_batch(described, list(reader.read("public.t")))
        assert rows.to_pydict() == {"id": [*range(1, 1001)], "name": [f"name {n}" for n in range(1, 1001)]}
        asked = "SELECT name, CASE WHEN id > 1 THEN 'ü' END AS other FROM public.t WHERE id < 3 ORDER BY id"
        assert reader.ask(asked) == [("name 1", None), ("name 2", "ü")]
        assert reader.ask("SELECT name FROM public.t WHERE false") == []
        assert sum(batch.num_rows for batch in reader.read("public.t")) == 1000
    soon(lambda: encrypted.query("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'airflow%'"), [])


def test_a_server_that_does_not_prove_itself_learns_nothing(encrypted: PostgresServer, tmp_path: Path) -> None:
    """Its certificate is from another authority or for another host: libpq reports it, and no session logs in."""
    described = describe(encrypted, DATABASE, "t")
    other = tmp_path / "other.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout /dev/null -out"
    subprocess.run([*request.split(), str(other)], check=True, capture_output=True)
    given = ConnectionSettings("postgres", encrypted.host, encrypted.port, "reader", "s3cret", DATABASE)
    for tls in ({"ca": str(other)}, {"mode": "verify_identity", "ca": str(tmp_path / "ca.pem")}):
        one = dataclasses.replace(given, tls=tls)
        assert verified_tls.applies(one)
        with pytest.raises(ssl.SSLCertVerificationError), verified_tls.open_session(one):
            pass
        with pytest.raises(ConfigurationError, match="TLS"), open_rows(one, described):
            pass


def test_a_wrong_password_over_verified_tls_is_reported_as_such(encrypted: PostgresServer, tmp_path: Path) -> None:
    tls = {"ca": str(tmp_path / "ca.pem")}
    one = ConnectionSettings("postgres", encrypted.host, encrypted.port, "reader", "wr0ng", DATABASE, tls)
    described = describe(encrypted, DATABASE, "t")
    with pytest.raises(LoginRefused, match="refuses this user or password") as refused, open_rows(one, described):
        pass
    assert "wr0ng" not in "".join(traceback.format_exception(refused.value))


def test_a_session_over_verified_tls_that_breaks_halfway_can_be_retried(
    encrypted: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has to wait until it can send the next rows only closes the connection: so it has some, and then
    none for long."""
    monkeypatch.setattr(stream, "_BUFFER", 1 << 14)
    rows = (
        "generate_series(1, 10) g CROSS JOIN LATERAL "
        "(SELECT * FROM public.t WHERE g < 5 OR pg_catalog.pg_sleep(600) IS NULL OFFSET 0) few"
    )
    tls = {"ca": str(tmp_path / "ca.pem")}
    one = ConnectionSettings("postgres", encrypted.host, encrypted.port, SUPERUSER, "", DATABASE, tls)
    described = describe(encrypted, DATABASE, "t")
    with open_rows(one, described) as reader:
        assert isinstance(reader, CopyReader)
        batches = reader.read(rows)
        next(batches)
        wait_for(encrypted, "wait_event = 'PgSleep'")
        encrypted.query("SELECT pg_terminate_backend(pid) FROM pg_stat_ssl WHERE ssl AND pid <> pg_backend_pid()")
        said = (
            "closed the connection; before that, the server sent: terminating connection due to administrator command"
        )
        with pytest.raises(SourceUnavailable, match=said), mapped_errors("t"):
            list(batches)


@pytest.fixture(scope="module")
def messages(postgres: PostgresServer) -> bytes:
    """The CopyData messages of three rows and the end, as a server sends them."""
    sql = (
        "COPY (SELECT n, CASE WHEN n > 1 THEN 'text ' || n END FROM generate_series(1, 3) n) TO STDOUT (FORMAT binary)"
    )
    with connect(settings(postgres, DATABASE)) as connection, connection.cursor().copy(sql) as copy:
        return b"".join(b"d" + (len(part) + 4).to_bytes(4, "big") + bytes(part) for part in iter(copy.read, b""))


def _locate(data: bytes, widths: list[int]) -> tuple[int, Int64s]:
    """What the kernel finds in ``data``; locating anything in the guard bytes behind it fails the test."""
    buffer: Bytes = np.frombuffer(data + bytes(32), np.uint8).copy()
    state: Int64s = np.zeros(packets.STATE_SIZE, np.int64)
    state[packets.STATE_FILLED] = len(data)
    starts, lengths = np.zeros((2, len(widths), 8), np.int32)
    sums = np.zeros((2, len(widths)), np.int64)
    code = packets.locate_rows(buffer, state, np.array(widths, np.int32), starts, lengths, *sums)
    rows = int(state[packets.STATE_ROWS])
    inside = (starts[:, :rows] < 0) | (starts[:, :rows] + lengths[:, :rows] <= len(data))
    assert inside.all()
    return code, state


def test_whole_messages(messages: bytes) -> None:
    code, state = _locate(messages, [4, -1])
    assert (code, state[packets.STATE_ROWS], state[packets.STATE_ENDED]) == (packets.NEEDS_BYTES, 3, 1)
    assert _locate(messages, [8, -1])[0] == packets.BAD_ROW
    assert _locate(messages, [4])[0] == packets.BAD_ROW


@given(data=st.data())
def test_messages_that_lie(messages: bytes, data: st.DataObject) -> None:
    """Cut or altered anywhere: nothing outside the received bytes is ever located."""
    damaged = bytearray(messages[: data.draw(st.integers(0, len(messages)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(damaged) - 1)), max_size=4)) if damaged else ():
        damaged[place] = data.draw(st.integers(0, 255))
    code, state = _locate(bytes(damaged), [4, -1])
    assert code in (packets.NEEDS_BYTES, packets.AT_OTHER, packets.BAD_ROW)
    assert 0 <= state[packets.STATE_POSITION] <= len(damaged)


def test_rows_that_end_without_saying_so(postgres: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    described = describe(postgres, DATABASE, table)
    with session(settings(postgres, DATABASE)) as connection:
        one = stream.CopyStream(stream.socket_of(connection), "copied")
        at_other = one.at_other

        def forgetful() -> bool:
            one.state[packets.STATE_ENDED] = 0
            return at_other()

        monkeypatch.setattr(one, "at_other", forgetful)
        with pytest.raises(DecodeError, match="without a CopyDone message"):
            list(CopyReader(one, described).read("public.copied"))
        one.close()
