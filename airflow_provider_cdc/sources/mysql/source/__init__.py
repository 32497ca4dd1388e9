"""A MySQL server as the jobs and operators use it. A module for each part of `Source` has its methods."""

from __future__ import annotations

from typing import ClassVar

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source
from airflow_provider_cdc.sources.mysql.log.replaced import WatchedTables
from airflow_provider_cdc.sources.mysql.server import server
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.session import RunSettings
from airflow_provider_cdc.sources.mysql.source.log import MysqlLog
from airflow_provider_cdc.sources.mysql.source.planning import MysqlPlanning
from airflow_provider_cdc.sources.mysql.source.reading import MysqlReading
from airflow_provider_cdc.sources.mysql.source.starts import MysqlStarts
from airflow_provider_cdc.sources.mysql.steps.carried_reads import CarriesReads, KeepsTables
from airflow_provider_cdc.sources.session import Kept


class MysqlSource(CarriesReads, KeepsTables, MysqlPlanning, MysqlStarts, MysqlReading, MysqlLog, Source):
    """`Source` for MySQL. The methods call functions of other modules.

    The methods import the decoders of rows and logs only when they are needed. The kernels of the decoders take a
    second to load, and are not used by the steps that only check, plan and record.

    :param facts: what the run recorded about the server on which it began. None: any server may answer. `of_run`
        returns a source with facts.
    """

    kind: ClassVar[str] = "mysql"
    position_key: ClassVar[str] = "initial_gtid_set"
    load_signals: ClassVar[frozenset[str]] = server.SIGNALS

    def __init__(self, settings: ConnectionSettings, facts: MysqlFacts | None = None) -> None:
        self.settings = settings
        self._facts = facts
        self._kept: Kept | None = None
        self._watched = None if facts is None else WatchedTables(facts)

    def __repr__(self) -> str:
        return f"MysqlSource({self.settings.address})"

    def of_run(self, identity: Facts, position: Position) -> MysqlSource:
        facts = MysqlFacts.of(identity)
        return MysqlSource(RunSettings.of(self.settings, facts, GtidSet.expect(position)), facts)
