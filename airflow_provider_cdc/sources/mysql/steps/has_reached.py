"""Determines whether a server has reached a position or a time. The server may be a replica or a source."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.optional_capabilities import Reach
from airflow_provider_cdc.sources.mysql.log.positions.prefixes import has_commit_after
from airflow_provider_cdc.sources.mysql.server.session import query, session


def has_reached(settings: ConnectionSettings, target: AsOf, seen: Reach | None = None) -> Reach:
    """Implements `TellsReach.has_reached`."""
    if isinstance(target, Lsn):
        raise ConfigurationError(
            f"{target} is an LSN, and the source is MySQL", where=settings.address, hint="give a GTID set or a time"
        )
    with session(settings) as connection:
        # Read the set of executed transactions before searching the log. A later comparison with this set shows whether
        # transactions were committed during the search.
        ((executed, now),) = query(
            connection, "SELECT @@global.gtid_executed, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
        )
    here = GtidSet.parse(str(executed))
    if isinstance(target, GtidSet):
        missing = target - here
        return Reach(not missing, f"it lacks {counted(len(missing), 'transaction')}: {str(missing)[:200]}")
    assert isinstance(target, datetime)
    clock = datetime.fromtimestamp(int(now) / 1_000_000, UTC)
    if clock <= target:
        return Reach(False, f"the server's clock shows {clock:%Y-%m-%d %H:%M:%S} UTC")
    lacks = "nothing was committed after that time yet, and a new commit may still get a timestamp up to that time"
    if seen is not None and not seen.reached and seen.at == str(here):
        return Reach(False, lacks, str(here))
    return Reach(has_commit_after(settings, target), lacks, str(here))
