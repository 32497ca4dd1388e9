"""A PostgreSQL server as the jobs and operators use it. A module for each part of `Source` has its methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Lsn, Position
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source
from airflow_provider_cdc.sources.postgres.server import server, session_setup
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import SharedView
from airflow_provider_cdc.sources.postgres.source.log import PostgresLog
from airflow_provider_cdc.sources.postgres.source.planning import PostgresPlanning
from airflow_provider_cdc.sources.postgres.source.reading import PostgresReading
from airflow_provider_cdc.sources.postgres.source.starts import PostgresStarts
from airflow_provider_cdc.sources.postgres.steps import snapshot
from airflow_provider_cdc.sources.postgres.steps.carried_reads import CarriesReads
from airflow_provider_cdc.sources.session import Kept


class PostgresSource(CarriesReads, PostgresPlanning, PostgresStarts, PostgresReading, PostgresLog, Source):
    """`Source` for PostgreSQL. Each method calls a function of the module for its subject.

    Modules that decode the log are imported where they are used, because their kernels take a second to load.

    :param view: the exported snapshot for reads with ``exported``. `share_reads` yields a source with such a snapshot.
    """

    kind: ClassVar[str] = "postgres"
    position_key: ClassVar[str] = "initial_lsn"
    load_signals: ClassVar[frozenset[str]] = server.SIGNALS
    carries_pieces: ClassVar[bool] = True

    def __init__(self, settings: ConnectionSettings, view: SharedView | None = None) -> None:
        self.settings = settings
        self.view = view
        self._kept: Kept | None = None

    def __repr__(self) -> str:
        return f"PostgresSource({self.settings.address})"

    def of_run(self, identity: Facts, position: Position) -> PostgresSource:
        facts = PostgresFacts.of(identity)
        return PostgresSource(session_setup.of_run(self.settings, facts, Lsn.expect(position)), self.view)

    @contextmanager
    def share_reads(self, lock: LockPolicy) -> Iterator[PostgresSource]:
        with snapshot.share_view(self.settings, lock) as view:
            yield PostgresSource(self.settings, view)
