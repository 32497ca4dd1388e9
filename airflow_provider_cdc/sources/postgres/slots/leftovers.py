"""Lists the replication slots and publications that runs created in a database, and drops single ones.

Each is dropped by its name. A run that starts again creates others with new names, so these are not affected. A slot
that a session uses is never dropped.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.starts import PUBLICATION, SLOT, KeptObject
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, query, quote, session
from airflow_provider_cdc.sources.postgres.slots.run_publication import about
from airflow_provider_cdc.sources.postgres.slots.slots import (
    PLUGIN,
    PREFIX,
    STANDING,
    name_of,
    require_primary,
    without_token,
)


def kept_objects(settings: ConnectionSettings, connection: Connection, run_ids: Collection[str]) -> list[KeptObject]:
    """Return the slots and publications of runs in this database, without the standing slots.

    The comment on a publication names its run. A slot belongs to the run of the publication with its name, or else to
    the run among ``run_ids`` whose id gives this name.

    :raises SourceUnavailable: a standby answered.
    """
    require_primary(settings, connection)
    slots = query(
        connection,
        "SELECT slot_name::text, COALESCE(active_pid, 0), "
        "COALESCE(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn), 0)::int8 FROM pg_replication_slots "
        "WHERE starts_with(slot_name::text, %s) AND NOT starts_with(slot_name::text, %s) AND plugin = %s "
        "AND NOT temporary AND database = current_database() ORDER BY 1",
        (PREFIX, STANDING, PLUGIN),
    )
    publications = query(
        connection,
        "SELECT pubname::text FROM pg_publication WHERE starts_with(pubname::text, %s) "
        "AND NOT starts_with(pubname::text, %s) AND obj_description(oid, 'pg_publication') LIKE %s ORDER BY 1",
        (PREFIX, STANDING, f"%{APPLICATION}%"),
    )
    comments = {name: about(connection, name) for (name,) in publications}
    owners = {name_of(run_id): run_id for run_id in run_ids}
    for name, comment in comments.items():
        if comment.get("run_id"):
            owners[without_token(name)] = str(comment["run_id"])

    def kept(kind: str, name: str, pid: int = 0, kept_bytes: int = 0) -> KeptObject:
        comment = comments.get(name, {})
        dag_id, dag_run_id, task_id = (str(comment.get(key) or "") for key in ("dag_id", "dag_run_id", "task_id"))
        run_id = owners.get(without_token(name), "")
        return KeptObject(kind, name, run_id, dag_id, dag_run_id, task_id, pid, kept_bytes)

    return [kept(SLOT, name, pid, size) for name, pid, size in slots] + [kept(PUBLICATION, name) for name in comments]


def drop_unused(settings: ConnectionSettings, one: KeptObject) -> str:
    """Drop a slot or a publication. Return why it stays; empty: it no longer exists."""
    try:
        with session(settings) as connection:
            return _drop(connection, one)
    except CdcError as error:
        return f"it could not be dropped: {error}"


def _drop(connection: Connection, one: KeptObject) -> str:
    there = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()"
    try:
        if one.kind == SLOT:
            if query(connection, there, (one.name,)):
                query(connection, "SELECT pg_drop_replication_slot(%s)", (one.name,))
        elif query(connection, there, (one.name,)):
            return "the slot with the same name still exists"
        else:
            execute(connection, f"DROP PUBLICATION IF EXISTS {quote(one.name)}")
    except psycopg.errors.UndefinedObject:
        # Another session has dropped it.
        return ""
    except psycopg.errors.ObjectInUse:
        return "a session uses it"
    return ""
