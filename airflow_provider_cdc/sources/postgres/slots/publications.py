"""Creates and changes the publication of a run, and checks a publication that the user has created. A publication
determines which changes the server sends to the run."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import LockNotGranted, Problem, SchemaChanged
from airflow_provider_cdc.sources.api.source import LeftByRun
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import FULL, IDENTIFYING
from airflow_provider_cdc.sources.postgres.catalog.schema import TREE, Leaf, leaves
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute
from airflow_provider_cdc.sources.postgres.server.session import (
    APPLICATION,
    Connection,
    error_text,
    literal,
    query,
    quote,
    value,
)

_log = logging.getLogger(__name__)

_GENERATED_COLUMNS_SINCE = 180_000
_CLEAR = "clear the task `preflight` and all tasks after it"
_PUBLISHED_AT_ONCE = 200
"""The maximum number of relations that one statement publishes. The statement locks each relation until it ends, and
the server has room for some thousands of locks."""


def create_publication(
    connection: Connection, name: str, tables: Sequence[Table], lock: LockPolicy, run_id: str = ""
) -> None:
    """Create a publication of every change of ``tables``. The publication lists each relation that now holds rows of
    the tables.

    Partitions that are created later are not published. A publication of the root would also publish its new
    partitions. In that case, the server would reject an application's UPDATE and DELETE on a new partition until the
    partition has a replica identity. Every published relation has a replica identity, which is checked while the
    relation is locked. So the server never rejects a statement because of this publication.

    A comment on the publication names the run.

    :raises LockNotGranted: a table is being vacuumed, indexed or altered for longer than the policy waits.
    :raises SchemaChanged: a table has another replica identity, or is gone.
    """
    options = ["publish = 'insert, update, delete, truncate'", "publish_via_partition_root = false"]
    if connection.info.server_version >= _GENERATED_COLUMNS_SINCE:
        options.append("publish_generated_columns = stored")

    def make() -> None:
        # Both statements run in one transaction.
        execute(
            connection,
            f"CREATE PUBLICATION {quote(name)} WITH ({', '.join(options)}); "
            f"COMMENT ON PUBLICATION {quote(name)} IS {literal(_comment(run_id))}",
        )
        _publish_all(connection, name, tables)

    def unmake() -> None:
        execute(connection, f"DROP PUBLICATION IF EXISTS {quote(name)}")

    _locking(connection, tables, lock, make, unmake)


def add_tables(connection: Connection, name: str, tables: Sequence[Table], lock: LockPolicy) -> None:
    """Add ``tables`` to a publication, as `create_publication` does. Tables that are already in the publication stay
    unchanged."""
    _locking(connection, tables, lock, lambda: _publish_all(connection, name, tables), lambda: None)


def let_go(connection: Connection, name: str) -> None:
    """Remove tables without a replica identity from a publication. While such a table is published, the server rejects
    UPDATE and DELETE on it."""
    rows = query(
        connection,
        "SELECT c.oid, n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid "
        "JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
        (name,),
    )
    listed = {oid: quote(schema, table) for oid, schema, table in rows}
    for oid, _, names in query(connection, IDENTIFYING, (list(listed),)):
        if names == []:
            _log.warning(
                "%s no longer has a replica identity: dropped the table from the publication %s", listed[oid], name
            )
            # Another session may have dropped or renamed the table.
            with suppress(psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject):
                execute(connection, f"ALTER PUBLICATION {quote(name)} DROP TABLE ONLY {listed[oid]}")


def _locking(
    connection: Connection,
    tables: Sequence[Table],
    lock: LockPolicy,
    change: Callable[[], None],
    undo: Callable[[], None],
) -> None:
    """Make a change that needs locks. Each try waits for the locks as long as the policy allows."""
    query(connection, f"SET lock_timeout = '{lock.wait_seconds}s'")
    for attempt in range(1, lock.tries + 1):
        try:
            change()
            break
        except psycopg.errors.LockNotAvailable:
            undo()
            if attempt == lock.tries:
                raise LockNotGranted(
                    f"the lock to publish the tables was not granted in {format_count(lock.tries, 'try', 'tries')} of "
                    f"{lock.wait_seconds} s",
                    where=", ".join(str(table.name) for table in tables),
                    hint="wait until the DDL, VACUUM or CREATE INDEX CONCURRENTLY on the tables has ended "
                    "(pg_stat_activity), or allow more tries",
                ) from None
            time.sleep(lock.pause_seconds)
    query(connection, "RESET lock_timeout")


def _publish_all(connection: Connection, name: str, tables: Sequence[Table]) -> None:
    there = {
        oid
        for (oid,) in query(
            connection,
            "SELECT r.prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
            "WHERE p.pubname = %s",
            (name,),
        )
    }
    listed = [(table.name, leaf) for table in tables for leaf in leaves(table) if leaf.oid not in there]
    for start in range(0, len(listed), _PUBLISHED_AT_ONCE):
        _publish(connection, name, listed[start : start + _PUBLISHED_AT_ONCE])


def _publish(connection: Connection, name: str, relations: Sequence[tuple[TableName, Leaf]]) -> None:
    """Add either all of the relations or no relation to a publication."""
    with connection.transaction():
        listed = ", ".join(f"ONLY {leaf.sql}" for _, leaf in relations)
        try:
            execute(connection, f"ALTER PUBLICATION {quote(name)} ADD TABLE {listed}")
        except psycopg.errors.InvalidParameterValue as error:
            # Preflight rejects such relations, so a relation was altered or replaced since it was read.
            raise SchemaChanged(
                f"a relation can no longer be published: {error_text(error)}",
                where=", ".join(dict.fromkeys(str(table) for table, _ in relations)),
                hint=f"make the relation a logged table again, and {_CLEAR}",
            ) from error
        # The locks are held, so nothing changes between this check and the moment the relations are published.
        found = {
            oid: identity
            for oid, identity, names in query(connection, IDENTIFYING, ([leaf.oid for _, leaf in relations],))
            if names is None or names
        }
        for table, leaf in relations:
            if found.get(leaf.oid) == leaf.identity:
                continue
            what, repair = f"the replica identity of {leaf.sql} has changed", "restore the replica identity"
            if leaf.identity == FULL:
                what = f"the replica identity of {leaf.sql} is no longer FULL, or the table now has a virtual column"
                repair = f"ALTER TABLE {leaf.sql} REPLICA IDENTITY FULL"
            raise SchemaChanged(what, where=str(table), hint=f"{repair}, and {_CLEAR}")


def publication_state(connection: Connection, name: str, relations: str = "") -> str:
    """Return a digest of the publication. Empty: there is no publication.

    Every change to the publication changes the digest, even if the change was undone. Each change writes a new version
    of the catalog row, and the old version gets another xmax as soon as the new version is written. Logical decoding
    uses the new version as soon as the log has the commit. Sessions may see the new version only later, when a standby
    has confirmed the commit.

    :param relations: comma-separated OIDs of the relations that the digest covers. Empty: all relations.
    """
    return str(
        value(
            connection,
            "COALESCE((SELECT md5(concat_ws(';', p.oid, p.xmin, p.xmax, "
            "(SELECT string_agg(concat_ws(',', r.oid, r.xmin, r.xmax, r.prrelid), ';' ORDER BY r.oid) "
            "FROM pg_publication_rel r WHERE r.prpubid = p.oid "
            "AND (%s = '' OR r.prrelid::text = ANY(string_to_array(%s, ',')))), "
            "(SELECT string_agg(concat_ws(',', n.oid, n.xmin, n.xmax, n.pnnspid), ';' ORDER BY n.oid) "
            "FROM pg_publication_namespace n WHERE n.pnpubid = p.oid))) "
            "FROM pg_publication p WHERE p.pubname = %s), '')",
            (relations, relations, name),
        )
    )


def members_state(connection: Connection, name: str, relations: str) -> str:
    """Return the state of a publication and of some of its relations. Empty: there is no publication.

    As in `publication_state`, every change has an effect. `altered_members` compares two states.

    :param relations: comma-separated OIDs of the relations.
    :returns: a digest of the publication, and ``oid:digest`` for each of the relations in it, separated by spaces.
    """
    return str(
        value(
            connection,
            "COALESCE((SELECT concat_ws(' ', md5(concat_ws(';', p.oid, p.xmin, p.xmax, "
            "(SELECT string_agg(concat_ws(',', n.oid, n.xmin, n.xmax, n.pnnspid), ';' ORDER BY n.oid) "
            "FROM pg_publication_namespace n WHERE n.pnpubid = p.oid))), "
            "(SELECT string_agg(r.prrelid || ':' || left(md5(concat_ws(',', r.oid, r.xmin, r.xmax)), 12), ' ' "
            "ORDER BY r.prrelid::bigint) FROM pg_publication_rel r WHERE r.prpubid = p.oid "
            "AND r.prrelid::text = ANY(string_to_array(%s, ',')))) "
            "FROM pg_publication p WHERE p.pubname = %s), '')",
            (relations, name),
        )
    )


def altered_members(connection: Connection, before: str, now: str) -> bool:
    """Return whether a publication was altered between two states (`members_state`).

    Relations that were dropped do not count: the publication has their changes up to the end. The check of the tables
    finds what was dropped.
    """
    missing, new = {*before.split()} - {*now.split()}, {*now.split()} - {*before.split()}
    if new or not all(":" in one for one in missing):
        return True
    oids = [int(one.partition(":")[0]) for one in missing]
    return bool(value(connection, "EXISTS (SELECT FROM pg_class WHERE oid = ANY(%s))", (oids,)))


FOLLOWED = "followed"
"""A key of `Table.details`. Its value is true if the run's publication has the relations of the table."""


def now(connection: Connection) -> str:
    """Return a mark in the order of transactions: the first transaction id that no committed transaction has yet.
    `altered_since` and `members_since` take it."""
    return str(value(connection, "pg_snapshot_xmax(pg_current_snapshot())::text"))


_SINCE = "(%s::numeric %% 4294967296)::text::xid"
"""The mark as a transaction id of 32 bits. Ages of transaction ids are compared, because these ids wrap around."""


def altered_since(connection: Connection, name: str, since: str) -> bool:
    """Return whether a publication was altered after the mark ``since`` (`now`), or dropped. Relations that left it do
    not count, because the publication also loses the tables that are dropped. See `members_since`."""
    return not value(
        connection,
        f"COALESCE((SELECT age(p.xmin) > age({_SINCE}) AND p.xmax::text = '0' "
        "AND NOT EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid) "
        f"AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND age(r.xmin) <= age({_SINCE})) "
        "FROM pg_publication p WHERE p.pubname = %s), false)",
        (since, since, name),
    )


def members_since(connection: Connection, name: str, since: str, relations: Sequence[int]) -> set[int]:
    """Return those of the ``relations`` (OIDs) that have been in a publication since the mark ``since``."""
    rows = query(
        connection,
        "SELECT r.prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
        f"WHERE p.pubname = %s AND r.prrelid = ANY(%s) AND r.xmax::text = '0' AND age(r.xmin) > age({_SINCE})",
        (name, list(relations), since),
    )
    return {oid for (oid,) in rows}


def about(connection: Connection, name: str) -> dict[str, Any]:
    """Return the fields that describe a run, from the comment on its publication. Empty: there is no such comment."""
    rows = query(
        connection, "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", (name,)
    )
    with suppress(ValueError):
        comment = json.loads(rows[0][0] or "{}") if rows else {}
        if isinstance(comment, dict):
            return comment
    return {}


def left_by_runs(connection: Connection) -> list[LeftByRun]:
    """Return the DAG runs that own publications in this database. A publication counts only if its comment names the
    DAG run."""
    rows = query(
        connection,
        "SELECT pubname::text FROM pg_publication WHERE obj_description(oid, 'pg_publication') LIKE %s ORDER BY 1",
        (f"%{APPLICATION}%",),
    )
    publications = [about(connection, name) for (name,) in rows]
    owners = [
        tuple(str(comment_fields.get(key) or "") for key in ("run_id", "dag_id", "dag_run_id"))
        for comment_fields in publications
    ]
    return [LeftByRun(*names) for names in dict.fromkeys(owners) if all(names)]


def _comment(run_id: str) -> str:
    """Return the comment that identifies the run to which the publication belongs."""
    comment_fields = {
        "made_by": APPLICATION,
        "run_id": run_id,
        # Airflow sets these variables for every task.
        "dag_id": os.environ.get("AIRFLOW_CTX_DAG_ID", ""),
        "dag_run_id": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        "task_id": os.environ.get("AIRFLOW_CTX_TASK_ID", ""),
        "host": socket.gethostname(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(comment_fields)


# Checks the existing publication that a connection specifies. This publication must publish every change that runs
# need.


_EXCEPT_SINCE = 190_000
_KINDS = ("insert", "update", "delete", "truncate")

# Roots of partition trees. In each of these trees, the publication lists a relation that can get more partitions.
_OPEN_ENDED = f"""WITH {TREE}
SELECT m.root FROM tree m JOIN pg_class c ON c.oid = m.relation JOIN pg_publication p ON p.pubname = %s
WHERE c.relkind = 'p' AND (p.puballtables
    OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
    OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace))
"""


def relations_sql(tables: Iterable[Table]) -> str:
    """Return the relations that hold the rows of the tables, as a list in the syntax of CREATE PUBLICATION."""
    return ", ".join(leaf.sql for table in tables for leaf in leaves(table))


def publication_problems(
    catalog: Catalog, name: str, tables: Sequence[Table], *, keys_only: bool = False
) -> Iterable[Problem]:
    """Yield the reasons why a publication does not publish every change of ``tables`` with all columns that are read.

    The publication may list partitions or their root. It may publish a change under the name of the partition or of the
    root.

    :param keys_only: the publication need not include generated columns.
    """
    where = f"publication {name}"
    rows = query(
        catalog,
        "SELECT oid, puballtables, ARRAY[pubinsert, pubupdate, pubdelete, pubtruncate] FROM pg_publication "
        "WHERE pubname = %s",
        (name,),
    )
    if not rows:
        yield Problem(
            where,
            "this database has no publication of that name",
            f"CREATE PUBLICATION {quote(name)} FOR TABLE {relations_sql(tables)}",
        )
        return
    ((oid, is_of_all, published),) = rows
    if is_of_all and catalog.info.server_version >= _EXCEPT_SINCE:
        yield Problem(
            where,
            "is a publication FOR ALL TABLES. From PostgreSQL 19 on, such a publication can leave a table out for a "
            "while (EXCEPT), and the catalog keeps no trace of this",
            f"CREATE PUBLICATION … FOR TABLE {relations_sql(tables)}, and name it in the connection; or let the run "
            "create a publication",
        )
    if not all(published):
        missing = ", ".join(kind for kind, publishes in zip(_KINDS, published, strict=True) if not publishes)
        yield Problem(
            where,
            f"does not publish every change: it leaves out {missing}",
            f"ALTER PUBLICATION {quote(name)} SET (publish = '{', '.join(_KINDS)}')",
        )
    generated = [
        table
        for table in tables
        if any(column.details.get("generated") == "stored" for column in table.as_read.columns)
    ]
    if generated and not keys_only and catalog.info.server_version >= 180_000:
        ((publishes,),) = query(catalog, "SELECT pubgencols FROM pg_publication WHERE oid = %s", (oid,))
        if publishes != "s":
            yield Problem(
                where,
                f"leaves out the generated columns of {', '.join(str(table.name) for table in generated)}",
                f"ALTER PUBLICATION {quote(name)} SET (publish_generated_columns = stored)",
            )
    # The tables that the server publishes, including those of FOR ALL TABLES and FOR TABLES IN SCHEMA. The view
    # pg_publication_tables has no OIDs, so its names could be those of other tables by now.
    covered = {
        relation: (filtered, columns)
        for relation, filtered, columns in query(
            catalog,
            "SELECT p.relid, p.qual IS NOT NULL, ARRAY(SELECT a.attname::text FROM pg_attribute a "
            "WHERE a.attrelid = p.relid AND a.attnum > 0 AND NOT a.attisdropped "
            "AND (p.attrs IS NULL OR a.attnum = ANY(p.attrs::int2[]))) FROM pg_get_publication_tables(%s) p",
            (name,),
        )
    }
    for table in tables:
        root = table.details["oid"]
        relations = [(root, quote(table.name.schema, table.name.name))]
        if root not in covered:
            relations = [(leaf.oid, leaf.sql) for leaf in leaves(table)]
        left_out = [sql for oid, sql in relations if oid not in covered]
        if left_out:
            yield Problem(
                where,
                f"does not list {table.name}"
                if len(left_out) == len(relations)
                else f"lists only a part of {table.name}",
                f"ALTER PUBLICATION {quote(name)} ADD TABLE {', '.join(left_out)}",
            )
            continue
        for oid, sql in relations:
            filtered, columns = covered[oid]
            published_columns = {
                column.name for column in table.as_read.columns if not (keys_only and column.details.get("generated"))
            }
            if filtered or not published_columns <= {*columns}:
                yield Problem(
                    where,
                    f"leaves out some {'rows' if filtered else 'columns'} of {table.name}",
                    f"ALTER PUBLICATION {quote(name)} DROP TABLE {sql}, then ADD TABLE {sql}",
                )


def warn_of_harm(catalog: Catalog, name: str, tables: Sequence[Table]) -> None:
    """Warn if the publication will include partitions that are created later. The server may reject UPDATE and DELETE
    on such partitions."""
    trees = [table for table in tables if table.details["kind"] == "p"]
    roots = [table.details["oid"] for table in trees]
    open_ended = {root for (root,) in query(catalog, _OPEN_ENDED, (roots, name))}
    if named := [str(table.name) for table in trees if table.details["oid"] in open_ended]:
        _log.warning(
            "The publication %s includes every future partition of %s. If a new partition has no primary key, the "
            "server rejects UPDATE and DELETE in the partition until REPLICA IDENTITY FULL is set. To avoid this, "
            "list the partitions instead: FOR TABLE %s",
            name,
            ", ".join(named),
            relations_sql(trees),
        )
