"""The assets of Airflow that copies are: one for each table of a source, with an event for each copy that is published.

A DAG that is to run whenever a table was copied names the table's asset::

    with DAG("report", schedule=table_asset("cdc_mysql", "shop.orders")):

That is the asset of the table's latest copies in the connection's production target (`production`). Copies in other
targets have assets of their own. So do copies that did not become the latest one of their folder: those of a past day,
or of a run that a newer one overtook. ``as_of`` alone does not make a copy one of the past: a nightly copy is as of the
end of its interval, and becomes the latest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_cdc import airflow_version

airflow_version.check()

from airflow.providers.common.compat.sdk import Asset, AssetAlias  # noqa: E402

from airflow_provider_cdc.core.storage.target import lake_of  # noqa: E402
from airflow_provider_cdc.core.storage.uri import LakeUri  # noqa: E402
from airflow_provider_cdc.core.tables.selection import selection_of  # noqa: E402
from airflow_provider_cdc.core.tables.table import CopyName, TableName  # noqa: E402
from airflow_provider_cdc.errors import ConfigurationError  # noqa: E402
from airflow_provider_cdc.production import check_named, production_targets  # noqa: E402
from airflow_provider_cdc.sources.planning.patterns import Pattern  # noqa: E402

_SCHEME = "x-cdc"
_LONGEST = 1500
"""Characters that Airflow takes as the URI of an asset."""


def table_asset(
    source_conn_id: str,
    table: str | TableName,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    past: bool = False,
) -> Asset:
    """The asset of a table's copies, whichever DAG makes them: ``x-cdc://<source_conn_id>/<schema>/<table>``. Copies of
    a part of the table have another one, for each part.

    :param source_conn_id: the connection that the table is copied from.
    :param table: ``schema.table``, with a part in double quotes where it holds a dot, as the option ``tables`` has it.
    :param where: the condition that the rows are copied by; None: all are.
    :param columns: the columns that are asked for; None: all are.
    :param target: the folder that the copies are published in, as the option ``target`` has it; None: the connection's
        production target. The asset of a production target is the same as with None.
    :param past: the copies that did not become the latest one of their folder, instead of those that did.
    :raises ConfigurationError: ``table`` does not name one table, ``where`` is no condition, ``target`` is no folder,
        or there is none and it is not known which target is production.
    """
    name = _literal(table) if isinstance(table, str) else table
    if name is None:
        raise ConfigurationError(f"{table!r} stands for any number of tables", hint="name one, as schema.table")
    if target is None:
        check_named(source_conn_id)
    lake = None if target is None else lake_of(target, source_conn_id)
    part = name.part or selection_of(where, columns).part
    return copy_asset(source_conn_id, CopyName(name, part), lake, latest=not past)


def copy_asset(source_conn_id: str, table: TableName, lake: str | None, *, latest: bool) -> Asset:
    """The asset that a copy is: what `table_asset` gives to those who wait for it.

    :param table: with its part, if it is a copy of one.
    :param lake: the URI of the target; None: it is a production target.
    :param latest: whether the copy became the latest one of its folder.
    """
    names = (source_conn_id, table.schema, table.name, *([table.part] if table.part else []))
    uri = f"{_SCHEME}://{'/'.join(quote(name, safe='') for name in names)}"
    apart: dict[str, str] = {}
    if lake is not None and not production_targets(source_conn_id).has(lake):
        apart["target"] = _canonical(lake)
    if not latest:
        apart["past"] = "true"
    if len(uri) + len(_query(apart)) > _LONGEST and "target" in apart:
        apart["target"] = f"sha256:{sha256(apart['target'].encode()).hexdigest()[:32]}"
    return Asset(uri=uri + _query(apart))


def copies_alias(dag_id: str, group_id: str) -> AssetAlias:
    """The alias through which a `SnapshotTaskGroup` announces all of its copies, whatever tables it turns out to copy,
    and wherever."""
    return AssetAlias(f"{_SCHEME}:{quote(dag_id, safe='')}/{quote(group_id, safe='')}")


def outlets_of(
    source_conn_id: str,
    tables: Any,
    on_table_error: Any,
    alias: AssetAlias,
    *,
    target: Any,
    in_part: bool = False,
) -> list[Asset | AssetAlias]:
    """The outlets of a group's last task: ``alias``, through which it announces its copies, and the assets of the
    tables that are sure to be copied, which the graph of assets shows before the first run.

    :param tables: the group's argument, as are the others: patterns, or a template.
    :param in_part: whether parts of tables may be copied: they have assets of their own.
    :raises ConfigurationError: Airflow's setting of the production targets is malformed.
    """
    # Otherwise the run would notice it only when it is published.
    production_targets("source")
    # A template, or what differs from group to group where groups are mapped, is known only when the tasks run.
    if in_part or on_table_error != "fail" or not isinstance(tables, (list, tuple)):
        return [alias]
    patterns = list(tables)
    if any(_is_template(value) for value in (source_conn_id, target, *patterns)):
        return [alias]
    if any(pattern.startswith("!") for pattern in patterns):
        return [alias]
    table_names: dict[TableName, None] = {}
    # Preflight refuses what is no pattern or no folder, with all that is wrong.
    for pattern in patterns:
        with suppress(ConfigurationError):
            if (name := _literal(pattern)) is not None:
                table_names[name] = None
    try:
        lake = lake_of(target, source_conn_id)
    except ConfigurationError:
        return [alias]
    return [alias, *(copy_asset(source_conn_id, name, lake, latest=True) for name in table_names)]


def announce(events: Any, outlets: Iterable[Any], copies: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Any]:
    """Give each copy its event, and return what the task's outlets have to be when it ends.

    When a task succeeds, Airflow makes an event of each asset among its outlets, whatever the task did. So those that
    `outlets_of` put there for the graph are left out.

    :param events: ``outlet_events`` of the task's context.
    :param outlets: those of the task.
    :param copies: of each copy, the URI of its asset, and what its event tells.
    """
    outlets = list(outlets)
    named = {outlet.uri: outlet for outlet in outlets if isinstance(outlet, Asset) and _is_ours(outlet.uri)}
    aliases = [outlet for outlet in outlets if isinstance(outlet, AssetAlias) and _is_ours(outlet.name)]
    outlets_kept = [outlet for outlet in outlets if not (isinstance(outlet, Asset) and outlet.uri in named)]
    for uri, extra in copies:
        for alias in aliases:
            events[alias].add(Asset(uri=uri), extra=dict(extra))
        if not aliases and uri in named:
            # A task that somebody made without a group.
            events[named[uri]].extra = dict(extra)
            outlets_kept.append(named[uri])
    return outlets_kept


def _is_ours(name: str) -> bool:
    return name.startswith(f"{_SCHEME}:")


def _canonical(lake: str) -> str:
    """The URI of a folder, in the one way of writing it: a path and its file URI are one place."""
    parsed = LakeUri.parse(lake)
    return str(LakeUri(parsed.scheme or "file", parsed.authority, ()).joined(*parsed.decoded))


def _query(apart: Mapping[str, str]) -> str:
    return f"?{urlencode(apart, safe='', quote_via=quote)}" if apart else ""


def _literal(pattern: str) -> TableName | None:
    """The one table that a pattern stands for; None: it may stand for others.

    :raises ConfigurationError: it is no pattern.
    """
    parts = Pattern.parse(pattern)
    return TableName(parts.schema[0], parts.name[0]) if len(parts.schema) == len(parts.name) == 1 else None


def _is_template(value: Any) -> bool:
    return not isinstance(value, str) or "{{" in value or "{%" in value
