"""Servers that require a client certificate: the right one logs in, also over the TLS relay; others are rejected."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.decode.rows import CopyReader, open_rows
from airflow_provider_cdc.sources.postgres.server import verified_tls
from airflow_provider_cdc.sources.postgres.server.session import reading_session, session
from harness.postgres_server import PostgresServer
from tests.servers import throw_away_postgres
from tests.sources.postgres.decode.reading import describe
from tests.sources.postgres.tls import switch_tls_on

DATABASE, USER = "postgres", "certified"
ROWS = [(n, f"name {n}") for n in range(1, 101)]


@dataclass(frozen=True)
class Authority:
    """Signs certificates of clients, and keeps all files in ``folder``."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, folder: Path, name: str) -> Authority:
        authority = cls(folder, name, ec.generate_private_key(ec.SECP256R1()))
        authority.path.write_bytes(authority._signed(name, authority.key.public_key(), is_authority=True))
        return authority

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.crt"

    def issue(self, user: str, passphrase: bytes = b"") -> dict[str, str]:
        """``ConnectionSettings.tls`` of a client with a certificate for ``user``."""
        key = ec.generate_private_key(ec.SECP256R1())
        cipher = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        stem = self.folder / f"{self.name}-{user}-{bool(passphrase)}"
        certificate, private = stem.with_suffix(".crt"), stem.with_suffix(".key")
        certificate.write_bytes(self._signed(user, key.public_key(), is_authority=False))
        private.touch(mode=0o600)
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher))
        return {"cert": str(certificate), "key": str(private)}

    def _signed(self, common_name: str, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Strict:
    """A server at which ``USER`` has no password, only a certificate that ``authority`` signed."""

    server: PostgresServer
    authority: Authority
    ca: Path
    table: Table

    def settings(self, tls: dict[str, str]) -> ConnectionSettings:
        where = self.server.host, self.server.port
        return ConnectionSettings("postgres", *where, USER, "", DATABASE, {"ca": str(self.ca)} | tls)

    def open(self, way: str, tls: dict[str, str]) -> AbstractContextManager[Any]:
        """One of `WAYS` to have a session."""
        settings = self.settings(tls)
        match way:
            case "control":
                return session(settings)
            case "replication":
                return session(settings, replication=True)
            case "log":
                return reading_session(settings)
            case "our own TLS":
                return verified_tls.open_session(settings)
        return open_rows(settings, self.table)


WAYS = ["control", "replication", "log", "rows"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strict]:
    folder = tmp_path_factory.mktemp("certificates")
    with throw_away_postgres() as server:
        switch_tls_on(server, folder / "ca.pem")
        authority = Authority.new(folder, "clients")
        # The server reads it as another user.
        trusted = server.data / "clients.crt"
        trusted.write_bytes(authority.path.read_bytes())
        trusted.chmod(0o644)
        server.query(f"ALTER SYSTEM SET ssl_ca_file = '{trusted}'")
        server.query(f"CREATE ROLE {USER} LOGIN REPLICATION; CREATE TABLE t (id int PRIMARY KEY, name text)")
        server.query(f"INSERT INTO t SELECT n, 'name ' || n FROM generate_series(1, {len(ROWS)}) n")
        server.query(f"GRANT SELECT ON t TO {USER}")
        hba = server.data / "pg_hba.conf"
        hba.write_text(f"hostssl all,replication {USER} all cert\nhost all {USER} all reject\n{hba.read_text()}")
        server.restart()
        yield Strict(server, authority, folder / "ca.pem", describe(server, DATABASE, "t"))


@pytest.mark.parametrize("way", [*WAYS, "our own TLS"])
def test_the_right_certificate_logs_in(way: str, strict: Strict) -> None:
    with strict.open(way, strict.authority.issue(USER)):
        pass


@pytest.mark.parametrize("way", [*WAYS, "our own TLS"])
def test_a_machine_without_the_files_gets_their_contents_with_the_settings(
    way: str, strict: Strict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = {name: tmp_path / name for name in ("ca", "cert", "key")}
    for name, path in ({"ca": strict.ca} | strict.authority.issue(USER)).items():
        tls[name].write_bytes(Path(path).read_bytes())
    sent = pickle.dumps(strict.settings({name: str(path) for name, path in tls.items()}).with_files())
    for path in tls.values():
        path.unlink()
    monkeypatch.setattr(Strict, "settings", lambda *_: pickle.loads(sent))
    with strict.open(way, {}):
        pass


def test_rows_are_read_over_our_own_tls(strict: Strict) -> None:
    with strict.open("rows", strict.authority.issue(USER)) as reader:
        assert isinstance(reader, CopyReader)
        rows = [row for batch in reader.read("public.t") for row in batch.to_pylist()]
    assert sorted((row["id"], row["name"]) for row in rows) == ROWS


WRONG = {
    "none": "requires a valid client certificate",
    "another user's": "certificate authentication failed",
    "another authority's": "SSL error",
}
"""The answer of the server."""


@pytest.mark.parametrize("wrong", WRONG)
def test_any_other_certificate_is_refused(wrong: str, strict: Strict, tmp_path: Path) -> None:
    tls = {}
    if wrong == "another user's":
        tls = strict.authority.issue("somebody")
    elif wrong == "another authority's":
        # It even has the same name.
        tls = Authority.new(tmp_path, strict.authority.name).issue(USER)
    for way in WAYS:
        with pytest.raises(ConfigurationError) as refused, strict.open(way, tls):
            pass
        assert WRONG[wrong] in refused.value.message
        assert "certificate" in refused.value.hint
    with pytest.raises((OSError, psycopg.Error)), strict.open("our own TLS", tls):
        pass


@pytest.mark.parametrize("way", WAYS)
def test_nobody_is_asked_for_the_passphrase_of_the_key(
    way: str, strict: Strict, capfd: pytest.CaptureFixture[str]
) -> None:
    tls = strict.authority.issue(USER, b"secret")
    with pytest.raises(ConfigurationError, match="key of the client certificate") as refused, strict.open(way, tls):
        pass
    assert "passphrase" in refused.value.hint
    assert "pass phrase" not in "".join(capfd.readouterr())
