"""Airflow assets of copies: one asset for each table of a source, with an event for each published copy.

To run a DAG whenever a table was copied, use the table's asset as the schedule::

    with DAG("report", schedule=table_asset("cdc_mysql", "shop.orders")):

This is the asset of the table's latest copies in the connection's production target (`production`). Copies in other
targets have separate assets. Copies that did not become the latest copy of their folder also have separate assets.
Examples are copies of a past day, and copies of a run that ended after a newer run. A copy with the option ``as_of``
can still become the latest copy. For example, a nightly copy is exact at the end of its interval, and becomes the
latest copy.
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

from airflow_provider_cdc.core.storage.uri import LakeUri, lake_of  # noqa: E402
from airflow_provider_cdc.core.tables.selection import selection_of  # noqa: E402
from airflow_provider_cdc.core.tables.table import CopyName, TableName  # noqa: E402
from airflow_provider_cdc.errors import ConfigurationError  # noqa: E402
from airflow_provider_cdc.production import check_named, production_targets  # noqa: E402
from airflow_provider_cdc.sources.planning.patterns import Pattern  # noqa: E402

_SCHEME = "x-cdc"
_LONGEST = 1500
"""The longest URI of an asset that Airflow accepts, in characters."""


def table_asset(
    source_conn_id: str,
    table: str | TableName,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    past: bool = False,
) -> Asset:
    """Return the asset of a table's copies: ``x-cdc://<source_conn_id>/<schema>/<table>``. All DAGs that copy the table
    use the same asset.

    Each part of the table (``where``, ``columns``) has its own asset.

    :param source_conn_id: the connection to the source of the table.
    :param table: ``schema.table``, as in the option ``tables``. A part of the name that contains a dot must be in
        double quotes.
    :param where: the condition that selects the copied rows. None: all rows are copied.
    :param columns: the requested columns. None: all columns.
    :param target: the folder in which the copies are published, as in the option ``target``. None: the connection's
        production target. For a production target, the asset is the same as for None.
    :param past: whether to return the asset of the copies that did not become the latest copy of their folder.
    :raises ConfigurationError: ``table`` does not name one table, ``where`` is not a condition, ``target`` is not a
        folder, or ``target`` is None and it is unknown which target is production.
    """
    name = _literal(table) if isinstance(table, str) else table
    if name is None:
        raise ConfigurationError(f"{table!r} may match several tables", hint="name one table, as schema.table")
    if target is None:
        check_named(source_conn_id)
    lake = None if target is None else lake_of(target, source_conn_id)
    part = name.part or selection_of(where, columns).part
    return copy_asset(source_conn_id, CopyName(name, part), lake, latest=not past)


def copy_asset(source_conn_id: str, table: TableName, lake: str | None, *, latest: bool) -> Asset:
    """Return the asset of a copy. `table_asset` returns an equal asset.

    :param table: the table's name. If only a part of the table is copied, the name also identifies this part.
    :param lake: the URI of the target. None: the target is a production target.
    :param latest: whether the copy became the latest copy of its folder.
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
    """Return the alias through which a `SnapshotTaskGroup` announces its copies. One alias serves all tables and
    targets."""
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
    """Return the outlets of a group's last task: ``alias``, through which the task announces its copies, and the assets
    of all tables that are certain to be copied. Because of these assets, the asset graph shows the tables before the
    first run.

    :param tables: the group's argument ``tables``: patterns or a template.
    :param in_part: whether parts of tables may be copied. Parts have separate assets.
    :raises ConfigurationError: Airflow's setting of the production targets is malformed.
    """
    # Check the setting now. Otherwise, a malformed setting would not stop the run until the run publishes its copies.
    production_targets("source")
    # The values of templates and of mapped groups are known only when the tasks run.
    if in_part or on_table_error != "fail" or not isinstance(tables, (list, tuple)):
        return [alias]
    patterns = list(tables)
    if any(_is_template(value) for value in (source_conn_id, target, *patterns)):
        return [alias]
    if any(pattern.startswith("!") for pattern in patterns):
        return [alias]
    table_names: dict[TableName, None] = {}
    # Preflight rejects an invalid pattern or folder, and lists all problems.
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
    """Add an event for each copy, and return the outlets that the task must have when it ends.

    When a task succeeds, Airflow creates an event for each asset in the task's outlets, even if the task did not copy
    the asset's table. So this function removes the assets that `outlets_of` added for the asset graph.

    :param events: ``outlet_events`` of the task's context.
    :param outlets: the outlets of the task.
    :param copies: for each copy, the URI of the copy's asset and the ``extra`` of the copy's event.
    """
    outlets = list(outlets)
    named = {outlet.uri: outlet for outlet in outlets if isinstance(outlet, Asset) and _is_ours(outlet.uri)}
    aliases = [outlet for outlet in outlets if isinstance(outlet, AssetAlias) and _is_ours(outlet.name)]
    outlets_kept = [outlet for outlet in outlets if not (isinstance(outlet, Asset) and outlet.uri in named)]
    for uri, extra in copies:
        for alias in aliases:
            events[alias].add(Asset(uri=uri), extra=dict(extra))
        if not aliases and uri in named:
            # If the task was created without a group, it has no alias.
            events[named[uri]].extra = dict(extra)
            outlets_kept.append(named[uri])
    return outlets_kept


def _is_ours(name: str) -> bool:
    return name.startswith(f"{_SCHEME}:")


def _canonical(lake: str) -> str:
    """Return the canonical URI of a folder. A path and its file URI have the same canonical URI."""
    parsed = LakeUri.parse(lake)
    return str(LakeUri(parsed.scheme or "file", parsed.authority, ()).joined(*parsed.decoded))


def _query(apart: Mapping[str, str]) -> str:
    return f"?{urlencode(apart, safe='', quote_via=quote)}" if apart else ""


def _literal(pattern: str) -> TableName | None:
    """Return the only table that a pattern matches. None: the pattern may match several tables.

    :raises ConfigurationError: the pattern is invalid.
    """
    parts = Pattern.parse(pattern)
    return TableName(parts.schema[0], parts.name[0]) if len(parts.schema) == len(parts.name) == 1 else None


def _is_template(value: Any) -> bool:
    return not isinstance(value, str) or "{{" in value or "{%" in value
