"""An impostor of the server cannot make the client hang, fill its memory, or send files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CdcError, DecodeError, SourceUnavailable
from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader
from airflow_provider_cdc.sources.mysql.log.dump import Dump
from airflow_provider_cdc.sources.mysql.server.session import connect, end, query, session
from tests.sources.lying_server import SOON_SECONDS, Bounded, Peer, lying_server
from tests.sources.mysql.lying_mysql import EOF, OK, MysqlPeer, remembered, settings_for


def _definition(code: int = 3, collation: int = 63) -> bytes:
    return b"\3def\0\0\0\1c\1c\x0c" + bytes([collation]) + b"\0\x0b\0\0\0" + bytes([code]) + b"\0\0\0\0\0"


def _forever(server: MysqlPeer, payload: bytes) -> None:
    data = b"".join(
        len(payload).to_bytes(3, "little") + bytes([sequence]) + payload
        for sequence in [(server.sequence + i) & 0xFF for i in range(256)]
    )
    while True:
        server.peer.send(data)


def _result_without_end(server: MysqlPeer) -> None:
    for payload in (b"\1", _definition(), EOF):
        server.say(payload)
    _forever(server, b"\x05hello")


def _columns_without_end(server: MysqlPeer) -> None:
    server.say(b"\xfe" + b"\xff" * 8)
    _forever(server, _definition())


def _row_without_end(server: MysqlPeer) -> None:
    for payload in (b"\1", _definition(), EOF):
        server.say(payload)
    _one_payload_without_end(server)


def _one_payload_without_end(server: MysqlPeer) -> None:
    while True:
        server.peer.send(b"\xff\xff\xff" + bytes([server.sequence]) + bytes(0xFFFFFF))
        server.sequence = (server.sequence + 1) & 0xFF


def _payloads(*payloads: bytes) -> Callable[[MysqlPeer], object]:
    def script(server: MysqlPeer) -> None:
        for payload in payloads:
            server.say(payload)
        server.peer.wait_for_end()

    return script


def _out_of_sequence(server: MysqlPeer) -> None:
    server.sequence = 77
    server.say(OK)
    server.peer.wait_for_end()


ANSWERS: dict[str, Callable[[MysqlPeer], object]] = {
    "a request for a file": _payloads(b"\xfb/etc/passwd"),
    "rows without end": _result_without_end,
    "a row without end": _row_without_end,
    "an answer without end": _one_payload_without_end,
    "columns without end": _columns_without_end,
    "a row that is longer than its packet": _payloads(b"\1", _definition(), EOF, b"\xfe" + b"\xff" * 8 + b"x"),
    "a definition of nothing": _payloads(b"\1", b""),
    "a definition that is longer than its packet": _payloads(b"\1", b"\xfd\xff\xff\xff"),
    "nothing": _payloads(b""),
    "half an OK": _payloads(b"\0"),
    "half an error": _payloads(b"\xff"),
    "the number of another packet": _out_of_sequence,
}


@pytest.fixture
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less time and memory than a real server may take."""
    for name, bound in (
        ("server.session.READ_SECONDS", 2),
        ("log.dump.SILENT_SECONDS", 2),
        ("log.dump.MAX_EVENT_BYTES", 1 << 26),
        ("server.driver.ANSWER_BYTES", 1 << 24),
        ("decode.stream._LARGEST", 1 << 26),
    ):
        monkeypatch.setattr(f"airflow_provider_cdc.sources.mysql.{name}", bound)


def _logged_in(then: Callable[[MysqlPeer], object], statements: int) -> Callable[[Peer], object]:
    """Allow a session to open, and then lie."""

    def script(peer: Peer) -> None:
        server = MysqlPeer(peer)
        server.greet()
        remembered(server)
        server.answer_opening()
        server.answer(statements)
        server.hear()
        then(server)

    return script


@pytest.mark.slow
@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("lie", ANSWERS)
def test_a_malformed_answer(lie: str, tmp_path: Path) -> None:
    with lying_server(_logged_in(ANSWERS[lie], 0), tmp_path) as liar, Bounded(SOON_SECONDS, 400):
        with pytest.raises((DecodeError, SourceUnavailable)) as refused, session(settings_for(liar.port)) as connection:
            query(connection, "SELECT c FROM t")
        assert refused.value.hint
    assert b"root:" not in liar.heard


TABLE = Table(TableName("d", "t"), (Column("c", "int", False),), key=("c",))


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("lie", ANSWERS)
@pytest.mark.parametrize("prepared", [False, True])
def test_malformed_rows(lie: str, prepared: bool, tmp_path: Path) -> None:
    """When the statement is prepared, and when it is executed."""
    if prepared and lie == "rows without end":
        pytest.skip("rows of a table have no end that could be foreseen; they are passed on, and not kept")

    def then(server: MysqlPeer) -> None:
        # SELECT @@character_set_results, @@time_zone
        for payload in (b"\2", _definition(253, 45), _definition(253, 45), EOF, b"\xfb\x06+00:00", EOF):
            server.say(payload)
        server.hear()
        if prepared:
            server.say(b"\0" + struct.pack("<IHHBH", 1, 1, 0, 0, 0))
            server.say(_definition())
            server.say(EOF)
            server.hear()
        ANSWERS[lie](server)

    with lying_server(_logged_in(then, 0), tmp_path) as liar, Bounded(SOON_SECONDS, 400):
        connection = connect(settings_for(liar.port), reading=True)
        try:
            with pytest.raises(CdcError) as refused, StatementReader(connection, TABLE) as reader:
                list(reader.read("", ()))
        finally:
            end(connection)
        assert isinstance(refused.value, (DecodeError, SourceUnavailable)) or "the statement's result differ" in str(
            refused.value
        )


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("lie", ["a request for a file", "an answer without end", "half an error", "nothing",
                                 "the number of another packet"])  # fmt: skip
def test_a_malformed_log(lie: str, tmp_path: Path) -> None:
    with lying_server(_logged_in(ANSWERS[lie], 1), tmp_path) as liar, Bounded(SOON_SECONDS, 400):
        dump = Dump(settings_for(liar.port), "binlog.000001", 4)
        with pytest.raises((DecodeError, SourceUnavailable)) as refused, closing(dump):
            _drain(dump)
        assert refused.value.hint


def _drain(dump: Dump) -> None:
    while dump.fill():
        pass
