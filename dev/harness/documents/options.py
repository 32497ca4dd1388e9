"""Generates the tables of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields

from airflow_provider_cdc.core.options.arguments import Arguments, SourceArguments, options_by_name, places
from airflow_provider_cdc.core.options.declare import Declaration, Option, declared_in
from airflow_provider_cdc.core.options.lake import CleanOptions
from airflow_provider_cdc.core.positions.kinds import only

_HEAD = "option", "default", "what it does"


def argument_table() -> Iterator[Sequence[str]]:
    """The arguments of a run: an option each, or an object."""
    yield "argument", "default", "what it is"
    for name in Arguments.__annotations__:
        kinds = places()[name]
        option = options_by_name().get(name if name == "tables" or not kinds else "")
        if option is None and kinds:
            option = _first(kinds[0])
        default = "required" if name in SourceArguments.__annotations__ else _default(option)
        objects = " or ".join(f"[`{kind.__name__}`](#{kind.__name__.lower()})" for kind in kinds)
        if name == "spark_conn_id":
            text = "The same as `spark=Spark(…)`, which needs no object if there is nothing else to set."
        elif not kinds:
            text = help_of(options_by_name()[name])
        elif option is None:
            text = f"{objects}: {_summary(kinds[0])}"
        else:
            text = f"{help_of(option)} More: {objects}."
        yield f"`{name}`", default, text


def _first(kind: type[Declaration]) -> Option | None:
    return next((one for one in declared_in(kind) if one.place == f"{kind.__name__}.{kind.first()}"), None)


def _summary(kind: type[Declaration]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split()).removesuffix("::").replace("``", "`")


def object_tables() -> Mapping[str, Callable[[], Iterator[Sequence[str]]]]:
    """The attributes of each object, by the name of its class."""
    found = dict.fromkeys(kind for kinds in places().values() for kind in kinds)
    for kind in [*found]:
        found |= dict.fromkeys(nested for one in fields(kind) for nested in kind.objects[one.name])  # type: ignore[arg-type]
    return {kind.__name__: lambda kind=kind: _attributes(kind) for kind in found}  # type: ignore[misc]


def _attributes(kind: type[Declaration]) -> Iterator[Sequence[str]]:
    yield _HEAD
    options = {one.place: one for one in declared_in(kind)}
    for one in fields(kind):  # type: ignore[arg-type]
        option = options.get(f"{kind.__name__}.{one.name}") or one.metadata.get("option")
        default = "required" if one.default is MISSING else ""
        if option is None:
            nested = kind.objects[one.name][0]
            yield f"`{one.name}`", default, f"[`{nested.__name__}`](#{nested.__name__.lower()}): {_summary(nested)}"
            continue
        name = f"`{one.name}`" if option.name in ("", one.name) else f"`{one.name}` (`{option.name}`)"
        yield name, default or _default(option), help_of(option)


def clean_table() -> Iterator[Sequence[str]]:
    yield _HEAD
    for one in declared_in(CleanOptions):
        yield f"`{one.name}`", _default(one), one.help


def help_of(one: Option) -> str:
    """The help of an option, with the kind of source that it is for, and other options by their places."""
    own = one.accepts.schema.get("enum", ())

    def place(found: re.Match[str]) -> str:
        other = options_by_name().get(found[1])
        moved = other is not None and found[1] not in places() and found[1] not in own and other.place
        return f"`{moved}`" if moved else found[0]

    text = re.sub("`([^`]*)`", place, one.help)
    return f"{only(one.feature)}: {text}" if one.feature else text


def _default(one: Option | None) -> str:
    if one is None or one.default in (None, "", ()):
        return ""
    if one.required:
        return "required"
    return f"`{str(one.default).lower() if isinstance(one.default, bool) else one.default}`"
