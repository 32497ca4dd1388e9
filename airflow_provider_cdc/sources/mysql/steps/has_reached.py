"""Determines whether a server has reached a position or a time. The server may be a replica or a source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.planning import Reach
from airflow_provider_cdc.sources.mysql.server.server import CLOCK
from airflow_provider_cdc.sources.mysql.server.session import query, session


def has_reached(settings: ConnectionSettings, target: AsOf) -> Reach:
    """`Source.has_reached`.

    A server has reached a time when its clock is past the time: every later commit then gets a later commit time
    (docs/design/as-of.md).
    """
    if isinstance(target, Lsn):
        raise ConfigurationError(
            f"{target} is an LSN, and the source is MySQL", where=settings.address, hint="give a GTID set or a time"
        )
    with session(settings) as connection:
        ((executed, now),) = query(connection, f"SELECT @@global.gtid_executed, {CLOCK}")
    if isinstance(target, GtidSet):
        missing = target - GtidSet.parse(str(executed))
        return Reach(not missing, f"it lacks {counted(len(missing), 'transaction')}: {str(missing)[:200]}")
    assert isinstance(target, datetime)
    clock = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(now))
    return Reach(clock > target, f"the server's clock shows {clock:%Y-%m-%d %H:%M:%S} UTC")
