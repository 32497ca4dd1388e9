"""Checks that a database view can be evaluated in the sessions of a run, and returns the same rows in each session.

A view is copied with the rows that it has in an exported snapshot. So every part of the view must depend only on rows
of tables and on settings that sessions pin. The lists in this module name the parts that are known to be safe:
immutable functions of the server, and stable functions that depend only on pinned settings. A view with any other part
is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.postgres.catalog import view_definitions
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, Leaf
from airflow_provider_cdc.sources.postgres.catalog.types import NAMES_OF_OBJECTS
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import (
    FIRST_OWN_OID,
    MATERIALIZED,
    VIEW,
    Definition,
    read_definition,
)
from airflow_provider_cdc.sources.postgres.server.session import error_text, is_transient, query

_HINT = (
    "leave the view out, or copy the tables that it reads, or a materialized view of it, whatever functions it calls"
)
_RENAMED = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
_KINDS = {"f": "a foreign table", "S": "a sequence", "t": "a TOAST table"}
_READ = frozenset("rpvm")

# Node types of PostgreSQL 15 to 18. Several node types have a shorter name in PostgreSQL 15. The list omits nodes whose
# result is random (TABLESAMPLE) or depends on the user or the clock (SQLVALUEFUNCTION). It also omits nodes that take
# locks (ROWMARKCLAUSE), run checks of domains (COERCETODOMAIN), or parse XML or JSON by special settings and rules. It
# does not include nodes that later versions add.
_NODES = frozenset(
    """
    QUERY RTE RANGETBLENTRY RTEPERMISSIONINFO RANGETBLREF RANGETBLFUNCTION ALIAS FROMEXPR JOINEXPR TARGETENTRY
    SETOPERATIONSTMT SORTGROUPCLAUSE GROUPINGSET GROUPINGFUNC WINDOWCLAUSE COMMONTABLEEXPR CTESEARCHCLAUSE
    VAR CONST PARAM FUNCEXPR NAMEDARGEXPR OPEXPR DISTINCTEXPR NULLIFEXPR SCALARARRAYOPEXPR BOOLEXPR NULLTEST BOOLEANTEST
    CASE WHEN CASEEXPR CASEWHEN CASETESTEXPR COALESCE COALESCEEXPR MINMAX MINMAXEXPR RELABELTYPE COERCEVIAIO
    ARRAYCOERCEEXPR CONVERTROWTYPEEXPR ARRAY ARRAYEXPR ROW ROWEXPR ROWCOMPARE ROWCOMPAREEXPR SUBLINK AGGREF WINDOWFUNC
    FIELDSELECT SUBSCRIPTINGREF COLLATE COLLATEEXPR
    """.split()
)

_STABLE = frozenset(
    """
    concat concat_ws format anytextcat textanycat array_to_string array_to_json row_to_json to_json to_jsonb
    json_agg json_object_agg jsonb_agg jsonb_object_agg json_build_object json_build_array jsonb_build_object
    jsonb_build_array quote_literal quote_nullable date_trunc date_part extract date time timetz timestamp timestamptz
    timezone make_timestamptz generate_series timestamptz_pl_interval timestamptz_mi_interval interval_pl_timestamptz
    """.split()
) | {
    f"{left}_{sign}_{right}"
    for left, right in (
        ("date", "timestamptz"),
        ("timestamp", "timestamptz"),
        ("timestamptz", "date"),
        ("timestamptz", "timestamp"),
    )
    for sign in ("eq", "ne", "lt", "le", "gt", "ge", "cmp")
}
"""Stable functions that depend only on the time zone and on settings for printing values. Sessions pin all of these
settings."""
_OF_THE_CLOCK = frozenset({"timezone(text,time with time zone)"})
"""Functions that depend on the clock, because they apply today's UTC offset. Other functions of the same name are in
`_STABLE`."""

# The types for which a text always converts to the same value. For other types, the value may depend on the clock (for
# example, for the text 'now') or on a setting.
_CONVERTIBLE = frozenset(
    {16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 650, 700, 701, 829, 869, 1042, 1043, 1186, 1560, 1562}
)
_CONVERTIBLE |= {1700, 2950, 3802}
# xml, xml[]: the conversion of a text depends on a setting.
_XML = frozenset({142, 143})

_CALLED = """
SELECT p.oid::regprocedure::text, p.proname::text, p.provolatile::text, p.oid >= %(own)s, p.oid IN (
    SELECT o.oprcode::oid FROM pg_operator o WHERE o.oid = ANY(%(operators)s::oid[]) AND o.oid >= %(own)s)
FROM pg_proc p WHERE p.oid = ANY(%(functions)s::oid[]) OR p.oid IN (
    SELECT o.oprcode::oid FROM pg_operator o WHERE o.oid = ANY(%(operators)s::oid[])) ORDER BY 1
"""
# Types for which the server may call user-defined functions that the tree of a view does not name:
# - User-defined base types and ranges: their operators and their output are user-defined functions.
# - Types with a user-defined default operator class: the server uses the class to compare rows and arrays.
# - Types with a user-defined cast to JSON: JSON functions use the cast.
_OF_USERS = """
WITH RECURSIVE part(oid) AS (
    SELECT unnest(%(types)s::oid[])
    UNION SELECT x.oid FROM part p JOIN pg_type t ON t.oid = p.oid, LATERAL (
        SELECT t.typelem WHERE t.typelem <> 0 UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT a.atttypid FROM pg_attribute a
        WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped) x(oid))
SELECT t.oid::regtype::text FROM part p JOIN pg_type t ON t.oid = p.oid
WHERE (t.oid >= %(own)s AND t.typtype NOT IN ('c', 'e', 'd') AND t.typoutput <> 'array_out'::regproc)
    OR EXISTS (SELECT FROM pg_opclass o WHERE o.opcintype = t.oid AND o.opcdefault AND o.oid >= %(own)s)
    OR (%(json)s AND EXISTS (SELECT FROM pg_cast c WHERE c.castsource = t.oid AND c.castfunc >= %(own)s
        AND c.casttarget = 'pg_catalog.json'::regtype)) ORDER BY 1
"""


def view_problems(catalog: Catalog, table: Table) -> Iterator[Problem]:
    """Yield the reasons why a view cannot be copied."""
    where, kind = str(table.name), table.details["kind"]
    if kind == MATERIALIZED:
        ((filled,),) = query(catalog, "SELECT relispopulated FROM pg_class WHERE oid = %s", (table.details["oid"],))
        if not filled:
            hint = "REFRESH MATERIALIZED VIEW, or leave the view out"
            yield Problem(where, "the materialized view was never filled (WITH NO DATA)", hint, where)
    if kind != VIEW:
        return
    reasons = list(_reasons(catalog, read_definition(catalog, table.details["oid"])))
    for reason in reasons:
        yield Problem(where, f"the view {reason}", _HINT, where)
    # Do not plan a rejected view, because planning could run user-defined code.
    if not reasons and (reason := _not_planned(catalog, table)):
        yield Problem(where, f"the server cannot plan a SELECT of the view: {reason}", _HINT, where)


def _reasons(catalog: Catalog, definition: Definition) -> Iterator[str]:
    for relation in definition.relations.values():
        if relation.of_server or relation.oid < FIRST_OWN_OID:
            yield f"reads {relation.name}, which is a system relation and has no position"
        elif relation.kind not in _READ:
            yield f"reads {relation.name}, {_KINDS.get(relation.kind, 'which is not a table')}, which has no position"
        elif relation.persistence != "p":
            yield f"reads {relation.name}, which is not logged"
        elif relation.is_parent:
            yield f"reads {relation.name}, from which other tables inherit: earlier children are unknown"
    if unknown := sorted(definition.nodes - _NODES):
        yield f"has parts that may mean something else in another session ({', '.join(unknown)})"
    if definition.has_system_columns:
        yield "reads system columns, which depend on where a row is stored and not on its values"
    called = {"functions": list(definition.functions), "operators": list(definition.operators), "own": FIRST_OWN_OID}
    functions = query(catalog, _CALLED, called)
    for signature, name, volatility, of_users, by_users_operator in functions:
        if of_users or by_users_operator:
            yield f"calls {signature}, or an operator that uses it, which is user-defined: its effect is unknown"
        elif volatility == "v" or (volatility == "s" and (name not in _STABLE or signature in _OF_THE_CLOCK)):
            yield f"calls {signature}, whose result depends on more than the rows of tables"
    if definition.types & (NAMES_OF_OBJECTS | _XML):
        yield "has values whose text depends on names of objects or on settings (types such as regclass and xml)"
    if definition.converted_to - _CONVERTIBLE:
        (names,) = query(
            catalog,
            "SELECT string_agg(oid::regtype::text, ', ' ORDER BY oid) FROM pg_type WHERE oid = ANY(%s::oid[])",
            (list(definition.converted_to - _CONVERTIBLE),),
        )[0]
        yield f"converts values of other types to {names} by their text, whose meaning may depend on time or settings"
    makes_json = any("json" in name for _, name, *_ in functions)
    types = {"types": list(definition.types), "own": FIRST_OWN_OID, "json": makes_json}
    for (name,) in query(catalog, _OF_USERS, types):
        yield f"has values of the type {name}, whose functions are user-defined"


def _not_planned(catalog: Catalog, table: Table) -> str:
    """Return the server's error for a SELECT from the view. Empty: there is no error.

    The cause of an error may be a missing privilege or a row security policy of a table.
    """
    (leaf,) = table.details["leaves"]
    try:
        with catalog.transaction(force_rollback=True):
            # The rollback releases the locks that planning takes.
            query(catalog, f"EXPLAIN SELECT FROM {_quoted(leaf[1])}.{_quoted(leaf[2])}")
    except psycopg.Error as error:
        # If the view was renamed since the snapshot, the caller reads the catalog again.
        if is_transient(error.sqlstate or "") or isinstance(error, _RENAMED):
            raise
        return error_text(error)
    return ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Checks that a database view was read as of the position of the exported snapshot.
#
# A read sees the rows of the snapshot as long as the table still has the same file. After a statement has rewritten a
# table, an older snapshot shows no rows of the table. After a refresh has rewritten a materialized view, an older
# snapshot shows the new rows. Also, the server uses the definition that the view has at the moment of the read. So each
# read checks the relations that its transaction has locked, while the locks are held.


# The functions in this query return the present state. The rows of catalog tables show the state as of the exported
# snapshot.
_LOCKED = f"""
SELECT l.relation::text, COALESCE(pg_catalog.pg_relation_filenode(l.relation), 0)::text, COALESCE(c.relkind::text, ''),
    COALESCE(c.relfilenode, 0)::text
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= {view_definitions.FIRST_OWN_OID}
    AND COALESCE(c.relkind, 'r') NOT IN ('i', 'I', 't')
    AND pg_catalog.pg_index_has_property(l.relation::regclass, 'clusterable') IS NULL
"""
_RETRY = "retry the task"


def check_view_read(ask: Callable[[str], Sequence[Sequence[Any]]], table: Table, leaf: Leaf) -> None:
    """Check that the current transaction has read the rows of a view as of the exported snapshot.

    :param ask: runs a query whose columns are all text, and returns its rows.
    :raises SourceUnavailable: a materialized view was refreshed after the snapshot. A new snapshot will show the new
        rows.
    :raises SchemaChanged: the view reads another relation than before, or a relation that was rewritten.
    """
    known = view_definitions.files(table.details.get("reads", ()))
    for oid, now, kind, then in ask(_LOCKED):
        if kind == view_definitions.MATERIALIZED:
            if now != then:
                raise SourceUnavailable(
                    "a materialized view was refreshed between the snapshot and its read",
                    where=f"{table.name}, relation {oid}",
                    hint=_RETRY,
                )
        elif table.details["kind"] == view_definitions.VIEW and (
            int(oid) not in known or now != then or known[int(oid)] not in (0, int(now))
        ):
            what = f"the relation {oid}, which the view reads, is new, or was truncated or rewritten"
            raise SchemaChanged(what, where=f"{table.name}, {leaf.sql}", hint=HINT)
