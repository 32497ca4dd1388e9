"""No message, traceback or local variable in a traceback shows a password, whatever characters it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server import session as mysql_session
from airflow_provider_cdc.sources.postgres.server import session as postgres_session
from tests.sources.lying_server import Peer, lying_server

PASSWORDS = ["s3cret", "p/:@ %&?#='\\ü☂", "postgresql://x:y@z/%zz", "%s %(a)s {b} $c", "two\nlines\t"]

Open = Callable[[ConnectionSettings], AbstractContextManager[Any]]
WAYS: dict[str, Open] = {
    "mysql": mysql_session.session,
    "postgres": postgres_session.session,
    "postgres, reading": postgres_session.reading_session,
}


def _hangs_up(peer: Peer) -> None:
    peer.sock.settimeout(0.1)
    peer.sock.recv(1)


def _talks_nonsense(peer: Peer) -> None:
    peer.send(b"\x20\0\0\0nonsense" + bytes(60))
    peer.wait_for_end()


WRONG: dict[str, dict[str, Any]] = {
    "no listener": {"port": 1},
    "no such host": {"host": "no-such-host.invalid"},
    "no authority": {"tls": {"ca": "/nowhere.pem"}},
    "an unknown mode": {"tls": {"mode": "on"}},
    "no user": {"user": ""},
    "no TLS": {"tls": {"mode": "required"}},
    "as it is": {},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("script", [_hangs_up, _talks_nonsense])
def test_a_connection_that_fails_does_not_reveal_the_password(
    way: str, wrong: str, script: Callable[[Peer], object], tmp_path: Path
) -> None:
    for password in PASSWORDS if wrong == "as it is" else PASSWORDS[1:2]:
        with lying_server(script, tmp_path) as liar:
            settings = ConnectionSettings(way.partition(",")[0], "127.0.0.1", liar.port, "cdc", password, "shop")
            with pytest.raises(CdcError) as failed, WAYS[way](dataclasses.replace(settings, **WRONG[wrong])):
                pass
        told = "\n".join(_everything(failed.value))
        for spelling in (password, quote(password, ""), quote_plus(password), repr(password)[1:-1]):
            assert spelling not in told


def _everything(error: BaseException) -> Iterator[str]:
    """The messages of an error and of its causes, and the local variables of the frames that they keep."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        todo += (link.__cause__, link.__context__)
        yield f"{link} {link!r} {vars(link)}"
        trace = link.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename != __file__:
                yield repr(dict(trace.tb_frame.f_locals))
            trace = trace.tb_next
