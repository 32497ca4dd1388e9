"""A task waits for a server that restarts. Otherwise its retries would be used up in seconds."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.operators.planning import planner
from airflow_provider_cdc.operators.planning.planner import wait_until_started
from airflow_provider_cdc.sources.postgres import PostgresSource
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.log.reading import settings as settings_of


def test_a_server_that_restarts_is_waited_for_and_one_that_is_not_there_is_not(
    postgres_factory: PostgresFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_factory()
    source = PostgresSource(settings_of(server, "postgres"))
    monkeypatch.setattr(planner, "_POLL_SECONDS", 0.05)

    def is_starting() -> bool:
        try:
            source.here()
        except SourceUnavailable as error:
            return error.is_starting
        return False

    with ThreadPoolExecutor(1) as pool:
        with server.connect():
            # It shuts down once its last session ends, and until then refuses others as while it recovers (57P03).
            server._signal(signal.SIGTERM)
            soon(is_starting, True)
            with pytest.raises(SourceUnavailable, match="not ready for connections"):
                wait_until_started(source, 0)
            waiting = pool.submit(wait_until_started, source)
        server.restart()
        waiting.result(60)
    server.stop()
    wait_until_started(source)
