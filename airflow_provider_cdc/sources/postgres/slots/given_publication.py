"""Checks the existing publication that a connection specifies. This publication must publish every change that runs
need."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import TREE, leaves
from airflow_provider_cdc.sources.postgres.server.session import query, quote

_EXCEPT_SINCE = 190_000
_KINDS = ("insert", "update", "delete", "truncate")

# Roots of partition trees. In each of these trees, the publication lists a relation that can get more partitions.
_OPEN_ENDED = f"""WITH {TREE}
SELECT m.root FROM tree m JOIN pg_class c ON c.oid = m.relation JOIN pg_publication p ON p.pubname = %s
WHERE c.relkind = 'p' AND (p.puballtables
    OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
    OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace))
"""

_log = logging.getLogger(__name__)


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
        missing = ", ".join(kind for kind, tells in zip(_KINDS, published, strict=True) if not tells)
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
        ((tells,),) = query(catalog, "SELECT pubgencols FROM pg_publication WHERE oid = %s", (oid,))
        if tells != "s":
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
