"""Detects what kind of server it is. On managed services, settings and privileges are changed in other ways than on a
plain server."""

from __future__ import annotations

from airflow_provider_cdc.sources.postgres.server.session import Connection, query

OWN, RDS, CLOUD_SQL, AZURE = "", "Amazon RDS", "Google Cloud SQL", "Azure"

_ON_DEMAND_SINCE = 190_000

_ROLES = {"rds_superuser": RDS, "cloudsqlsuperuser": CLOUD_SQL, "azure_pg_admin": AZURE}


def platform(connection: Connection) -> str:
    """Return the managed service that runs the server, or `OWN` if there is none. A service is recognized by its
    roles."""
    roles = {name for (name,) in query(connection, "SELECT rolname::text FROM pg_roles")}
    return next((service for role, service in _ROLES.items() if role in roles), OWN)


def change_setting(service: str, name: str, value: str) -> str:
    """Return a hint that says how to change a server setting that needs a restart."""
    if service == RDS:
        if name == "wal_level":
            return "set rds.logical_replication = 1 in the DB (cluster) parameter group, and reboot the instance"
        return f"set {name} = {value} in the DB (cluster) parameter group, and reboot the instance"
    if service == CLOUD_SQL:
        if name == "wal_level":
            return "set the database flag cloudsql.logical_decoding = on, which restarts the instance"
        return f"set the database flag {name} = {value}, which restarts the instance"
    if service == AZURE:
        return f"set the server parameter {name} = {value}, and restart the server"
    return f"ALTER SYSTEM SET {name} = {value}, and restart the server"


def allow_replication(service: str, user: str) -> str:
    """Return a hint that says how to allow a user to create slots and read from them. ``user`` is already quoted."""
    return f"GRANT rds_replication TO {user}" if service == RDS else f"ALTER ROLE {user} REPLICATION"


def decodes_on_demand(connection: Connection, wal_level: str) -> bool:
    """Return whether the server decodes its log only while a logical slot exists. The first logical slot switches the
    decoding on, although ``wal_level`` is not ``logical``."""
    return connection.info.server_version >= _ON_DEMAND_SINCE and wal_level == "replica"
