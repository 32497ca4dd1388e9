"""Whether a name that was read still stands for the relation that the run began with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, RENAMED, REWRITTEN, Leaf, columns_of
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.server.session import literal, quote


def check_in_place(
    ask: Callable[[str], Sequence[Sequence[Any]]], table: Table, leaf: Leaf, locked: bool = True
) -> None:
    """Make sure, while it is locked, that what the leaf's name stands for is the recorded relation, in its first file,
    and that its columns are called what they were, and are of the same types.

    :param ask: returns the rows of a query whose columns are all text.
    :param locked: whether the session has just read it, and nothing before that in its transaction.
    :raises SchemaChanged: it is not.
    """
    relation = f"to_regclass({literal(leaf.sql)})"
    # The catalog's tables would be read as of the session's snapshot, which may be older than what a SELECT goes by. An
    # expansion of the row type is what a SELECT goes by.
    types = ", ".join(f"pg_typeof(r.{quote(column.name)})::oid" for column in table.columns)
    # A schema's name cannot be locked: during the read the name may have stood for another relation. So look at what
    # the transaction has locked.
    # r.* and not r, which would be a column of that name if there is one.
    read = f"SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation = {leaf.oid}"
    ((oid, filenode, names, found, was_read),) = ask(
        f"SELECT {relation}::oid::text, pg_relation_filenode({relation})::text, row_to_json(r.*)::text, "
        f"array_to_string(ARRAY[{types}], ' '), EXISTS ({read})::text FROM (SELECT (NULL::{leaf.sql}).*) r"
    )
    what = ""
    # A view has no file of its own, and a materialized one may have another (`view_reads`).
    same_file = table.details["kind"] in (VIEW, MATERIALIZED) or filenode == str(leaf.filenode)
    if oid != str(leaf.oid) or not same_file:
        what = REWRITTEN if oid == str(leaf.oid) else RENAMED
    elif locked and was_read != "true":
        what = "another table had its name for a while"
    elif list(json.loads(str(names))) != [column.name for column in columns_of(table, leaf)]:
        what = "its columns had other names for a while"
    elif found != " ".join(str(column.details["oid"]) for column in table.columns):
        what = "its columns had other types for a while"
    if what:
        raise SchemaChanged(what, where=f"{table.name}, {leaf.sql}", hint=HINT)
