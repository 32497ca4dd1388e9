"""Finds the privileges that the user of a session lacks, and the GRANT statement for each of them.

The functions ``has_…_privilege`` of the server determine the result. So the server's rules for roles, inheritance and
superusers apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import psycopg

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError, LoginRefused, Problem, TransientError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf, leaves
from airflow_provider_cdc.sources.postgres.server.server import allow_replication, platform
from airflow_provider_cdc.sources.postgres.server.session import Connection, connect, query, quote
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.publications import relations_sql
from airflow_provider_cdc.sources.tokens import RDS_IAM

_PLACE = "ctid"
"""The system column with the physical location of a row."""
_INHERIT_SINCE = 160_000
_MAY_SELECT = "(SELECT bool_and(has_table_privilege(r.oid, w, 'SELECT')) FROM unnest(%s::oid[]) w)"
_OWNS = "(SELECT bool_and(pg_has_role(r.oid, c.relowner, 'USAGE')) FROM pg_class c WHERE c.oid = ANY(%s::oid[]))"


class Privileges:
    """The privileges of the session's user, including the privileges of the user's roles."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        ((user, login, database, self._superuser, self._replicates, self._create),) = query(
            connection,
            "SELECT current_user::text, session_user::text, current_database()::text, r.rolsuper, r.rolreplication, "
            "has_database_privilege(current_database(), 'CREATE') FROM pg_roles r WHERE r.rolname = current_user",
        )
        self._user, self._login, self._database = quote(user), quote(login), quote(database)

    def server_problems(self, settings: ConnectionSettings, *, publishing: bool) -> list[Problem]:
        """Return the missing privileges that are needed to create a slot and, if ``publishing``, a publication."""
        problems = []
        # On managed services, the role attribute REPLICATION does not show whether the user may replicate. So try to
        # open a replication connection. If the server has no free connection, another check reports that.
        with suppress(TransientError):
            try:
                connect(settings, replication=True).close()
            except (ConfigurationError, LoginRefused) as error:
                problems.append(
                    Problem(
                        "REPLICATION",
                        "this user cannot open a replication connection, so it can neither create a replication slot "
                        f"nor read from one: {error.message}",
                        allow_replication(platform(self._connection), self._user)
                        + ("; and set rds.iam_auth_for_replication to 1" if settings.auth == RDS_IAM else ""),
                    )
                )
        if not problems and (refused := self._refused_by_slots()):
            problems.append(
                Problem(
                    "REPLICATION",
                    f"this user may open a replication connection, but its sessions act as the role {self._user}, and "
                    f"this role may not read from a slot: {refused}",
                    f"ALTER ROLE {self._login} RESET role, or "
                    f"{allow_replication(platform(self._connection), self._user)}",
                )
            )
        # Since PostgreSQL 17, the function has one more argument.
        ((marking, may_mark),) = query(
            self._connection,
            "SELECT oid::regprocedure::text, has_function_privilege(oid, 'EXECUTE') FROM pg_proc WHERE pronamespace = "
            "'pg_catalog'::regnamespace AND proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype",
        )
        if not may_mark:
            problems.append(
                Problem(
                    marking,
                    "this user may not execute the function, which a run needs to mark the end of its reads in the log",
                    f"GRANT EXECUTE ON FUNCTION pg_catalog.{marking} TO {self._user}",
                )
            )
        if publishing and not self._create:
            problems.append(
                Problem(
                    f"database {self._database}",
                    "this user may not create a publication in it",
                    f"GRANT CREATE ON DATABASE {self._database} TO {self._user}, or enter the name of an existing "
                    "publication in the connection",
                )
            )
        return problems

    def _refused_by_slots(self) -> str:
        """Return the server's error if the session may not read from slots. Empty: the session may read from slots.

        A user may have the right to open a replication connection, but act as a role that may not use slots (``ALTER
        ROLE … SET role``). To find this out, the session tries to drop a slot that does not exist.
        """
        if self._login == self._user or self._superuser or self._replicates:
            return ""
        try:
            query(self._connection, "SELECT pg_drop_replication_slot(%s)", (f"{slots.PREFIX}none_{uuid4().hex}",))
        except psycopg.errors.InsufficientPrivilege as error:
            return " ".join(str(error).split())
        except psycopg.Error:
            pass
        return ""

    def table_problems(self, catalog: Catalog, tables: Sequence[Table], *, publishing: bool) -> list[Problem]:
        """Return the missing privileges that are needed to read tables and, if ``publishing``, to publish the
        tables."""
        return [problem for table in tables for problem in self._problems_of(catalog, table, publishing)]

    def _problems_of(self, catalog: Catalog, table: Table, publishing: bool) -> list[Problem]:
        problems = []
        schemas: dict[str, None] = {}
        unreadable = []
        for leaf in leaves(table):
            uses, denied = self._may_read(catalog, leaf, table)
            if not uses:
                schemas[leaf.schema] = None
            if denied:
                unreadable.append((leaf, denied))
        problems += [
            Problem(
                str(table.name),
                f"this user may not use the schema {schema}",
                self._inherited(catalog, "has_schema_privilege(r.oid, %s, 'USAGE')", schema)
                or f"GRANT USAGE ON SCHEMA {quote(schema)} TO {self._user}",
            )
            for schema in schemas
        ]
        if unreadable:
            problems.append(self._unreadable(catalog, table, unreadable))
        if publishing and not self._owns(catalog, table):
            problems.append(
                Problem(
                    str(table.name),
                    "this user does not own the table and each of its partitions; only the owner may publish it",
                    self._inherited(catalog, _OWNS, _relations(table))
                    or f"let the owner run CREATE PUBLICATION … FOR TABLE {relations_sql([table])}, and name this "
                    f"publication in the connection; or GRANT the owner's role to {self._user}",
                )
            )
        return problems

    def _may_read(self, catalog: Catalog, leaf: Leaf, table: Table) -> tuple[bool, list[str]]:
        """Return whether this user may use the leaf's schema, and which of the copied columns this user may not
        read."""
        # Reads select ranges of the system column ctid. So SELECT on all user columns is not enough.
        read = [*(column.name for column in table.as_read.columns), _PLACE]
        ((uses, denied),) = query(
            catalog,
            "SELECT has_schema_privilege(%s, 'USAGE'), ARRAY(SELECT attname::text FROM pg_attribute "
            "WHERE attrelid = %s AND attname = ANY(%s) AND NOT attisdropped "
            "AND NOT has_table_privilege(attrelid, 'SELECT') "
            "AND NOT has_column_privilege(attrelid, attnum, 'SELECT') ORDER BY attnum)",
            (leaf.schema, leaf.oid, read),
        )
        return uses, denied

    def _unreadable(self, catalog: Catalog, table: Table, unreadable: Sequence[tuple[Leaf, list[str]]]) -> Problem:
        """Return the problem of a table with columns that this user may not read.

        :param unreadable: relations that hold the table's rows, each with the columns that this user may not read.
        """
        denied = {name for _, names in unreadable for name in names}
        listed = ", ".join(leaf.sql for leaf, _ in unreadable)
        read = [column.name for column in table.as_read.columns]
        left_out = [name for name in read if name in denied and name not in table.key]
        rest = [name for name in read if name not in denied]
        if not table.selection.columns:
            what = "this user lacks SELECT on the table, on some of its columns or on some of its partitions"
            hint = f"GRANT SELECT ON {listed} TO {self._user}"
            if left_out and rest and not denied & {*table.key}:
                hint += f"; or leave out the columns that it may not read ({', '.join(left_out)}): option columns"
                hint += f", with GRANT SELECT (ctid) ON {listed} TO {self._user}" if _PLACE in denied else ""
        else:
            what = f"this user lacks SELECT on {', '.join(name for name in [*read, _PLACE] if name in denied)}"
            what += ", which is needed to read tables in parts" if _PLACE in denied else ""
            columns = ", ".join([*map(quote, (name for name in read if name in denied)), *({_PLACE} & denied)])
            hint = f"GRANT SELECT ({columns}) ON {listed} TO {self._user}"
        inherited = self._inherited(catalog, _MAY_SELECT, [leaf.oid for leaf, _ in unreadable])
        return Problem(str(table.name), what, inherited or hint)

    def _inherited(self, catalog: Catalog, condition: str, argument: object) -> str:
        """Return a hint if the user lacks a privilege only because it does not inherit the privileges of one of its
        roles. Empty: there is no such role.

        :param condition: an SQL condition on a row ``r`` of pg_roles: the role has the privilege.
        """
        rows = query(
            catalog,
            "SELECT r.rolname::text FROM pg_roles r WHERE pg_has_role(r.oid, 'MEMBER') "
            f"AND NOT pg_has_role(r.oid, 'USAGE') AND {condition} ORDER BY 1 LIMIT 1",
            (argument,),
        )
        if not rows:
            return ""
        role = quote(rows[0][0])
        inherit = f"GRANT {role} TO {self._user} WITH INHERIT TRUE"
        if catalog.info.server_version < _INHERIT_SINCE:
            inherit = f"ALTER ROLE {self._user} INHERIT"
        return (
            f"this user is a member of {role}, which has the privilege, but does not inherit its privileges: "
            f"{inherit}, or ALTER ROLE {self._login} SET role = {role}"
        )

    def _owns(self, catalog: Catalog, table: Table) -> bool:
        ((owns,),) = query(
            catalog,
            "SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class WHERE oid = ANY(%s::oid[])",
            (_relations(table),),
        )
        return bool(owns) or bool(self._superuser)


def _relations(table: Table) -> list[int]:
    return [leaf.oid for leaf in leaves(table)] or [table.details["oid"]]
