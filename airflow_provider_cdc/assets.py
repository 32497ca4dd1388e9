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
    partition_key: str = "",
) -> list[Asset | AssetAlias]:
    """Return the outlets of a group's last task: ``alias``, through which the task announces its copies, and the assets
    of all tables that are certain to be copied. Because of these assets, the asset graph shows the tables before the
    first run.

    :param tables: the group's argument ``tables``: patterns or a template.
    :param in_part: whether parts of tables may be copied. Parts have separate assets.
    :param partition_key: the key of the partition that each copy becomes, or its template; empty: none. The outlets
        then also have the assets of copies that do not become the latest ones, because an alias has no partitions.
    :raises ConfigurationError: Airflow's setting of the production targets is malformed. Or there is a partition key,
        but this Airflow has no partitions, or it is unknown which tables will be copied.
    """
    found = _certain_tables(source_conn_id, tables, on_table_error, target, in_part=in_part)
    if partition_key:
        _check_partitions(all_named=bool(found) and None not in found)
    names = dict.fromkeys(name for name in found if name is not None)
    lake = lake_of(target, source_conn_id) if names else None
    kinds = (True, False) if partition_key else (True,)
    return [alias, *(copy_asset(source_conn_id, name, lake, latest=latest) for name in names for latest in kinds)]


def _certain_tables(
    source_conn_id: str, tables: Any, on_table_error: Any, target: Any, *, in_part: bool
) -> Sequence[TableName | None]:
    """Return the table that each pattern names, or None. Empty: no table is certain to be copied as a whole."""
    # Check the setting now. Otherwise, a malformed setting would not stop the run until the run publishes its copies.
    production_targets("source")
    # The values of templates and of mapped groups are known only when the tasks run.
    if in_part or on_table_error != "fail" or not isinstance(tables, (list, tuple)):
        return ()
    patterns = list(tables)
    if any(_is_template(value) for value in (source_conn_id, target, *patterns)):
        return ()
    if any(pattern.startswith("!") for pattern in patterns):
        return ()
    found: list[TableName | None] = [None] * len(patterns)
    # Preflight rejects an invalid pattern or folder, and lists all problems.
    for number, pattern in enumerate(patterns):
        with suppress(ConfigurationError):
            found[number] = _literal(pattern)
    try:
        lake_of(target, source_conn_id)
    except ConfigurationError:
        return ()
    return found


def _check_partitions(*, all_named: bool) -> None:
    """Check that the events of all copies can have a partition.

    :param all_named: whether all tables that will be copied are known.
    :raises ConfigurationError: they cannot.
    """
    # Import it late: only DAGs with partitions need it.
    from airflow.sdk.execution_time.context import OutletEventAccessor

    if not hasattr(OutletEventAccessor, "add_partitions"):
        raise ConfigurationError(
            "the asset events of this Airflow have no partitions",
            where="Lake.partition_key",
            hint="use Airflow 3.3 or later",
        )
    if not all_named:
        raise ConfigurationError(
            "it is not known which tables will be copied, so their assets cannot have partitions",
            where="Lake.partition_key",
            hint="name each table in tables, without templates and patterns in source_conn_id, tables and target, and "
            "without Table.where, Table.columns, Merge and On.table_error",
        )


def announce(
    events: Any, outlets: Iterable[Any], copies: Iterable[tuple[str, Mapping[str, Any]]], partition_key: str = ""
) -> list[Any]:
    """Add an event for each copy, and return the outlets that the task must have when it ends.

    When a task succeeds, Airflow creates an event for each asset in the task's outlets, even if the task did not copy
    the asset's table. So this function removes the assets that `outlets_of` added for the asset graph.

    :param events: ``outlet_events`` of the task's context.
    :param outlets: the outlets of the task.
    :param copies: for each copy, the URI of the copy's asset and the ``extra`` of the copy's event.
    :param partition_key: if not empty, each asset of ``outlets`` also gets an event with this key. An event with a key
        starts only DAGs that are scheduled on partitions, and the event of the alias starts all other DAGs.
    """
    outlets = list(outlets)
    named = {outlet.uri: outlet for outlet in outlets if isinstance(outlet, Asset) and _is_ours(outlet.uri)}
    aliases = [outlet for outlet in outlets if isinstance(outlet, AssetAlias) and _is_ours(outlet.name)]
    outlets_kept = [outlet for outlet in outlets if not (isinstance(outlet, Asset) and outlet.uri in named)]
    for uri, extra in copies:
        for alias in aliases:
            events[alias].add(Asset(uri=uri), extra=dict(extra))
        # If the task was created without a group, it has no alias.
        if uri in named and (partition_key or not aliases):
            events[named[uri]].extra = dict(extra)
            if partition_key:
                events[named[uri]].add_partitions(partition_key)
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
