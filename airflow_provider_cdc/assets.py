"""The assets of Airflow that copies are: one for each table of a source, with an event for each copy that is published.

A DAG that is to run whenever a table was copied names the table's asset::

    with DAG("report", schedule=table_asset("cdc_mysql", "shop.orders")):
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from airflow_provider_cdc import airflow_version

airflow_version.check()

from airflow.providers.common.compat.sdk import Asset, AssetAlias  # noqa: E402

from airflow_provider_cdc.core.selection import selection_of  # noqa: E402
from airflow_provider_cdc.core.table import TableName  # noqa: E402
from airflow_provider_cdc.errors import ConfigurationError  # noqa: E402
from airflow_provider_cdc.sources.patterns import Pattern  # noqa: E402

_SCHEME = "x-cdc"


def table_asset(
    source_conn_id: str,
    table: str | TableName,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
) -> Asset:
    """The asset of a table's copies, whichever DAG makes them: ``x-cdc://<source_conn_id>/<schema>/<table>``. Copies of
    a part of the table have another one, for each part.

    :param source_conn_id: the connection that the table is copied from.
    :param table: ``schema.table``, with a part in double quotes where it holds a dot, as the option ``tables`` has it.
    :param where: the condition that the rows are copied by; None: all are.
    :param columns: the columns that are asked for; None: all are.
    :raises ConfigurationError: ``table`` does not name one table, or ``where`` is no condition.
    """
    name = _literal(table) if isinstance(table, str) else table
    if name is None:
        raise ConfigurationError(f"{table!r} stands for any number of tables", hint="name one, as schema.table")
    part = name.part or selection_of(where, columns).part
    own = (source_conn_id, name.schema, name.name, *([part] if part else []))
    return Asset(uri=f"{_SCHEME}://{'/'.join(quote(one, safe='') for one in own)}")


def copies_alias(dag_id: str, group_id: str) -> AssetAlias:
    """What stands for all tables that a `SnapshotTaskGroup` turns out to copy, which its patterns do not tell."""
    return AssetAlias(f"{_SCHEME}:{quote(dag_id, safe='')}/{quote(group_id, safe='')}")


def outlets_of(
    source_conn_id: str, tables: Any, on_table_error: Any, alias: AssetAlias, *, in_part: bool = False
) -> list[Asset | AssetAlias]:
    """What a group's last task announces: ``alias``, and the assets of the tables that are sure to be copied.

    :param tables: the group's argument, as are the two others: patterns, or a template.
    :param in_part: whether parts of tables may be copied: they have assets of their own.
    """
    # A template, or what differs from group to group where groups are mapped, is known only when the tasks run.
    if in_part or on_table_error != "fail" or _is_template(source_conn_id) or not isinstance(tables, (list, tuple)):
        return [alias]
    patterns = list(tables)
    if any(pattern.startswith("!") or _is_template(pattern) for pattern in patterns):
        return [alias]
    found: dict[TableName, None] = {}
    for pattern in patterns:
        # Preflight refuses what is no pattern, with all that is wrong.
        with suppress(ConfigurationError):
            if (name := _literal(pattern)) is not None:
                found[name] = None
    return [alias, *(table_asset(source_conn_id, name) for name in found)]


def announce(
    events: Any, outlets: Iterable[Any], source_conn_id: str, copies: Mapping[TableName, Mapping[str, Any]]
) -> None:
    """Give each copy its event.

    :param events: ``outlet_events`` of the task's context.
    :param outlets: those of the task, as `outlets_of` made them.
    :param copies: what is told of each table's copy.
    """
    named = {outlet.uri for outlet in outlets if isinstance(outlet, Asset)}
    aliases: Sequence[AssetAlias] = [outlet for outlet in outlets if isinstance(outlet, AssetAlias)]
    own = [alias for alias in aliases if alias.name.startswith(f"{_SCHEME}:")]
    for table, extra in copies.items():
        asset = table_asset(source_conn_id, table)
        if asset.uri in named:
            events[asset].extra = dict(extra)
        else:
            for alias in own:
                events[alias].add(asset, extra=dict(extra))


def _literal(pattern: str) -> TableName | None:
    """The one table that a pattern stands for; None: it may stand for others.

    :raises ConfigurationError: it is no pattern.
    """
    parts = Pattern.parse(pattern)
    return TableName(parts.schema[0], parts.name[0]) if len(parts.schema) == len(parts.name) == 1 else None


def _is_template(value: Any) -> bool:
    return not isinstance(value, str) or "{{" in value or "{%" in value
