"""Converts the arguments of a run to the values of its options, by name, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from airflow_provider_cdc.core.options.arguments import options_by_name, places
from airflow_provider_cdc.core.options.copied import Lake, Merge, Table
from airflow_provider_cdc.core.options.declare import (
    Declaration,
    check_given,
    check_names,
    name_of,
    rendered_later,
    unfit,
)
from airflow_provider_cdc.errors import ConfigurationError

_ON_SPARK = "spark_conn_id"
_ANY_TABLE = (Table, Merge)


def values_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that the arguments set, by option name. Options with their defaults are left
    out.

    In the value of ``tables``, objects become mappings, in which Airflow renders templates.

    :raises ConfigurationError: a value is not accepted.
    """
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        kinds = places()[name]
        if name == "tables":
            own = {name: _plain_tables(value)}
        elif kinds:
            own = _values_in(_object_for(name, value, kinds))
        else:
            check_given(options_by_name()[name], value, MISSING, name)
            own = {name: value}
        for other in own.keys() & values.keys():
            if own[other] != values[other]:
                raise ConfigurationError(
                    f"{other} is set twice: {values[other]!r} and {own[other]!r}", where=name, hint="set it once"
                )
        values |= own
    return values


def with_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options without objects in ``tables``: ``tables`` is a list of patterns, and the values
    of the objects are those of the options by table.

    :raises ConfigurationError: an object in ``tables`` is not accepted.
    """
    found = dict(values)
    if not isinstance(values.get("tables"), (list, tuple)):
        return found
    patterns: list[Any] = []
    for element in values["tables"]:
        if not isinstance(element, (Mapping, Declaration)):
            patterns.append(element)
            continue
        table: Any = object_of(_ANY_TABLE, element, "tables") if isinstance(element, Mapping) else element
        named = table.shards if isinstance(table, Merge) else [table.name]
        # Shards may be the output of a task, which is not known when the DAG is parsed.
        if isinstance(named, (list, tuple)):
            patterns += [pattern for pattern in named if pattern not in patterns]
        for name, value in _values_in(table).items():
            if options_by_name()[name].by_table:
                earlier = found.get(name) or {}
                if earlier.get(table.name, value) != value:
                    what = f"{name} is set twice for {table.name}"
                    raise ConfigurationError(what, where="tables", hint="name the table in one object")
                found[name] = {**earlier, table.name: value}
            elif isinstance(value, (list, tuple)):
                found[name] = list(dict.fromkeys([*(found.get(name) or ()), *value]))
            else:
                found[name] = value
    return {**found, "tables": patterns}


def object_of(kinds: Sequence[type[Declaration]], given: Mapping[str, Any], place: str) -> Any:
    """Return the object with the attributes ``given``.

    :param kinds: the classes from which to choose.
    :raises ConfigurationError: no class has these attributes.
    """
    kind = Merge if Merge in kinds and "shards" in given else kinds[0]
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    check_names([str(name) for name in given], names, f"the object {kind.__name__} in {place}", "attribute")
    for one in fields(kind):  # type: ignore[arg-type]
        if one.default is MISSING and one.name not in given:
            hint = f"give {one.metadata['option'].example}"
            raise ConfigurationError(f"the object {kind.__name__} has no {one.name}", where=place, hint=hint)
    return kind(**given)


def _object_for(name: str, value: Any, kinds: Sequence[type[Declaration]]) -> Declaration:
    if isinstance(value, Declaration):
        if not isinstance(value, tuple(kinds)):
            raise unfit(name, value, kinds)
        return value
    return kinds[0].of_first(value, name)


def _values_in(group: Declaration) -> dict[str, Any]:
    values = dict(group.implies)
    for one in fields(group):  # type: ignore[arg-type]
        value, name = getattr(group, one.name), name_of(one)
        if isinstance(value, Declaration):
            values |= _values_in(value)
        elif name and (one.default is MISSING or value != one.default):
            values[name] = value
    return values


def _plain_tables(tables: Any) -> Any:
    if isinstance(tables, _ANY_TABLE):
        raise ConfigurationError(f"{tables!r} is not a list of tables", where="tables", hint=f"write [{tables!r}]")
    if not isinstance(tables, (list, tuple)):
        check_given(options_by_name()["tables"], tables, MISSING, "tables")
        return tables
    return [_plain_table(element) for element in tables]


def _plain_table(element: Any) -> Any:
    if isinstance(element, Mapping) and not rendered_later(element):
        element = object_of(_ANY_TABLE, element, "tables")
    if not isinstance(element, Declaration):
        return element
    if not isinstance(element, _ANY_TABLE):
        raise unfit("tables", element, _ANY_TABLE)
    given = {
        one.name: value
        for one in fields(element)
        if (value := getattr(element, one.name)) != one.default or one.default is MISSING
    }
    return element.name if given.keys() == {"name"} and isinstance(element, Table) else given


@cache
def paths() -> Mapping[str, str]:
    """Return the path of each option, by its name: the argument, and the attributes that lead to the option, such as
    ``target.retention.days``."""
    found: dict[str, str] = {}
    for name, kinds in places().items():
        for kind in kinds:
            found |= _paths_in(kind, f"{name}[]" if name == "tables" else name)
    return found | {name: name for name in places() if name in options_by_name()}


def _paths_in(kind: type[Declaration], start: str) -> dict[str, str]:
    found = {}
    for one in fields(kind):  # type: ignore[arg-type]
        is_first = one.name == kind.first() and not kind.implies
        path = start if is_first else f"{start}.{one.name}"
        if name := name_of(one):
            found[name] = path
        for nested in kind.objects[one.name]:
            found |= _paths_in(nested, f"{path}.{nested.implies[name]}" if name else path)
    return found


# The way back, from the values of options to arguments.


def arguments_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that set the values of options. It is the reverse of `values_given`.

    Values by table that are known only when the tasks run have no place in arguments, and are left out.
    """
    arguments: dict[str, Any] = {}
    values = with_tables(values)
    for name, kinds in places().items():
        if name == "tables":
            if tables := _tables_of(values):
                arguments[name] = tables
        elif not kinds:
            if name in values and name != _ON_SPARK:
                arguments[name] = values[name]
        elif (group := _made(kinds[0], values)) is not None:
            arguments[name] = _shortened(group)
    return arguments


def _made(kind: type[Declaration], values: Mapping[str, Any]) -> Any:
    """Return the object that sets the values, or None if it would set none."""
    given: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if (name := name_of(one)) in values:
            given[one.name] = values[name]
        for nested in kind.objects[one.name]:
            if (group := _made(nested, values)) is not None:
                given[one.name] = group
    if not given:
        return None
    # The target may be given elsewhere, such as in `PartialGroup.expand`.
    return kind(**{"uri": "…", **given}) if kind is Lake else kind(**given)


def _shortened(group: Declaration) -> Any:
    """Return the first attribute of an object that sets no other attribute."""
    first, *others = fields(group)  # type: ignore[arg-type]
    if not group.first() or any(getattr(group, one.name) != one.default for one in others):
        return group
    return getattr(group, first.name)


def _tables_of(values: Mapping[str, Any]) -> Any:
    tables = values.get("tables", ())
    by_table = {
        name: value
        for name, one in options_by_name().items()
        if one.by_table and isinstance(value := values.get(name), Mapping) and not any(map(rendered_later, value))
    }
    if not isinstance(tables, (list, tuple)):
        return tables
    merges = [Merge(name, shards, **_settings_of_merges(values)) for name, shards in by_table.pop("merge", {}).items()]
    shards = {pattern for one in merges for pattern in one.shards}
    names = [name for name in tables if name not in shards]
    # A pattern in an object adds all its tables to the run, so each table that the run names gets an object of its own.
    are_names = not any("*" in name or name.startswith("!") for name in names)
    if not are_names:
        names += [name for own in by_table.values() for name in own]
    found: list[Any] = []
    for name in dict.fromkeys(names):
        own = {
            option: one
            for option, value in by_table.items()
            for pattern, one in value.items()
            if pattern == name or (are_names and fnmatchcase(name, pattern))
        }
        found.append(Table(name, **own) if own else name)
    return [*merges, *found]


def _settings_of_merges(values: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for one in fields(Merge) if (name := name_of(one)) in values]
    return {name: values[name] for name in names if not options_by_name()[name].by_table}
