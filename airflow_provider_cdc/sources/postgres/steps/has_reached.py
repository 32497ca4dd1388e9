"""Finds out whether a server has reached a position or a time. The server may be a standby or the primary."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.planning import Reach
from airflow_provider_cdc.sources.postgres.server.session import query, session

# On a standby, readers see the transactions that the standby has replayed. One of the two functions works only on a
# standby, the other only on a primary.
_HERE = (
    "SELECT pg_is_in_recovery(), "
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text, "
    "CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() ELSE clock_timestamp() END"
)


def has_reached(settings: ConnectionSettings, target: AsOf) -> Reach:
    """`Source.has_reached`.

    A primary has reached a time when its clock is past the time. A standby has reached a time when it has replayed a
    commit with a later time. The standby's own clock does not count, because it does not show which transactions are
    still to be replayed.
    """
    if isinstance(target, GtidSet):
        raise ConfigurationError(
            "the position is a GTID set, but the source is PostgreSQL",
            where=settings.address,
            hint="give an LSN or a time",
        )
    with session(settings) as connection:
        ((standby, text, when),) = query(connection, _HERE)
    if isinstance(target, Lsn):
        here = Lsn.parse(text or "0/0")
        return Reach(
            here >= target,
            f"the server is at {here}; the requested position is {counted(target - here, 'byte')} of log ahead",
        )
    assert isinstance(target, datetime)
    assert when is None or isinstance(when, datetime)
    if when is not None and when > target:
        return Reach(True)
    if not standby:
        return Reach(False, f"the server's clock shows {when:%Y-%m-%d %H:%M:%S} UTC")
    last = (
        f"the last replayed commit was at {when:%Y-%m-%d %H:%M:%S} UTC"
        if when
        else "the standby has not replayed any commit yet"
    )
    return Reach(False, f"the standby has not replayed a commit after the requested time; {last}")
