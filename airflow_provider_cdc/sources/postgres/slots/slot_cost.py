"""Reports what a standing slot costs the server."""

from __future__ import annotations

import logging

from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import Standing, format_micros

_A_DAY = 26 * 3600
"""The number of seconds for which a slot may be idle if only nightly runs use it."""

_log = logging.getLogger(__name__)


def tell_cost(connection: Connection, name: str, record: Standing) -> None:
    """Report how much of the server's log the standing slot keeps. Warn of settings that would invalidate the slot, or
    that leave the size of the kept log unlimited."""
    slot = slots.state(connection, name)
    if slot is None:
        return
    marks = record.since(slot.confirmed)
    _log.info(
        "The standing slot %s keeps %.1f MB of log (wal_status %s) and dead rows of the catalog; the past reaches back "
        "to %s, %s. If the slot is no longer needed: SELECT pg_drop_replication_slot('%s'); DROP PUBLICATION %s;",
        name,
        (slot.kept_bytes or 0) / 1e6,
        slot.wal_status,
        slot.confirmed,
        format_micros(marks[0].latest) if marks else "an unknown time",
        name,
        quote(name),
    )
    slots.warn_if_short(slot)
    limits = dict(
        query(
            connection,
            "SELECT name, setting::bigint FROM pg_settings "
            "WHERE name IN ('max_slot_wal_keep_size', 'idle_replication_slot_timeout')",
        )
    )
    if limits["max_slot_wal_keep_size"] < 0:
        _log.warning(
            "max_slot_wal_keep_size is -1, so the log that the standing slot %s keeps has no limit. If no run is "
            "published for a long time, the log fills the server's disk. Set the limit to what the disk can spare",
            name,
        )
    if 0 < (idle := limits.get("idle_replication_slot_timeout", 0)) < _A_DAY:
        _log.warning(
            "idle_replication_slot_timeout is %d s: the server removes the log of the standing slot %s if no run is "
            "published for that long",
            idle,
            name,
        )
