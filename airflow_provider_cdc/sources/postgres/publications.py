"""A publication that somebody else made for our runs: whether it tells everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.session import Connection, query, quote

_KINDS = ("insert", "update", "delete", "truncate")


def publication_problems(connection: Connection, name: str, tables: Sequence[Table]) -> Iterable[Problem]:
    """What is wrong with the publication: it must tell every change of every row and column of ``tables``."""
    where = f"publication {name}"
    rows = query(
        connection,
        "SELECT oid, ARRAY[pubinsert, pubupdate, pubdelete, pubtruncate], pubviaroot FROM pg_publication "
        "WHERE pubname = %s",
        (name,),
    )
    if not rows:
        listed = ", ".join(quote(table.name.schema, table.name.name) for table in tables)
        yield Problem(
            where,
            "there is none of that name in this database",
            f"CREATE PUBLICATION {quote(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)",
        )
        return
    ((oid, published, via_root),) = rows
    if not all(published):
        missing = ", ".join(kind for kind, tells in zip(_KINDS, published, strict=True) if not tells)
        yield Problem(
            where,
            f"does not tell every change: it leaves out {missing}",
            f"ALTER PUBLICATION {quote(name)} SET (publish = '{', '.join(_KINDS)}')",
        )
    if not via_root and any(table.details["kind"] == "p" for table in tables):
        yield Problem(
            where,
            "tells the changes of partitions under their own names",
            f"ALTER PUBLICATION {quote(name)} SET (publish_via_partition_root = true)",
        )
    generated = [
        table for table in tables if any(column.details.get("generated") == "stored" for column in table.columns)
    ]
    if generated and connection.info.server_version >= 180_000:
        ((tells,),) = query(connection, "SELECT pubgencols FROM pg_publication WHERE oid = %s", (oid,))
        if tells != "s":
            yield Problem(
                where,
                f"leaves out generated columns, which {', '.join(str(table.name) for table in generated)} have",
                f"ALTER PUBLICATION {quote(name)} SET (publish_generated_columns = stored)",
            )
    # The server's own view of what is published, with what FOR ALL TABLES and FOR TABLES IN SCHEMA bring.
    covered = {
        relation: (filtered, columns)
        for relation, filtered, columns in query(
            connection,
            "SELECT c.oid, p.rowfilter IS NOT NULL, cardinality(p.attnames) FROM pg_publication_tables p "
            "JOIN pg_class c ON c.relname = p.tablename "
            "JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = p.schemaname WHERE p.pubname = %s",
            (name,),
        )
    }
    for table in tables:
        sql = quote(table.name.schema, table.name.name)
        if table.details["oid"] not in covered:
            yield Problem(where, f"does not hold {table.name}", f"ALTER PUBLICATION {quote(name)} ADD TABLE {sql}")
            continue
        filtered, columns = covered[table.details["oid"]]
        if filtered or columns < len(table.columns):
            yield Problem(
                where,
                f"leaves out some {'rows' if filtered else 'columns'} of {table.name}",
                f"ALTER PUBLICATION {quote(name)} DROP TABLE {sql}, then ADD TABLE {sql}",
            )
