"""The arguments of `SnapshotTaskGroup`: the options that most users set, and the objects with the others.

Each option is declared once, as an argument in `Arguments`, or as an attribute of an object in ``core.options.copied``
(what a run copies, and to where) or ``core.options.running`` (how a run works). A declaration has the type, the
default, the accepted values and the description. The operators' attributes, the params of the package's DAGs, the keys
of ``nightly.yaml``, the checks, the options in the manifest (``core.options.run``) and ``docs/options.md`` are derived
from the declarations.

To add an option, declare it there, and add an attribute to the class in ``core.options.run`` or ``core.options.lake``
from which the steps read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Annotated, Any, TypedDict, get_type_hints

from airflow_provider_cdc.core.options.copied import Lake, Merge, Table
from airflow_provider_cdc.core.options.declare import (
    AS_OF,
    CONNECTION,
    FLAG,
    TABLE_NAMES,
    WHOLE_SECONDS,
    Declaration,
    Option,
    Template,
    classes_in,
    declaration,
    declared_in,
    option,
)
from airflow_provider_cdc.core.options.running import Allow, Limits, On, Read, Refresh, Spark

REMOVED_IN = "0.4.0"
"""The version that no longer accepts the options as arguments and keys of their own."""


class SourceArguments(TypedDict, total=False):
    """The arguments that say what is copied, and to where."""

    source_conn_id: Annotated[
        str,
        option(
            common=True,
            accepts=CONNECTION,
            title="Source",
            help="Connection to the source, of type `cdc_mysql`, `cdc_postgres`, `mysql` or `postgres`.",
            example="text such as cdc_mysql",
        ),
    ]
    tables: Annotated[
        Sequence[str | Table | Merge | Mapping[str, object]] | Template,
        option(
            common=True,
            accepts=TABLE_NAMES,
            title="Tables",
            help="The tables as `schema.table`. `*` matches any run of characters in either part. A pattern that "
            "begins with `!` excludes tables that earlier patterns matched (`!shop._*_gho`). A part in double quotes "
            "is taken literally, including dots and stars.",
            example='a list such as ["shop.orders", "shop.order_*"]',
        ),
    ]
    target: Lake | str


class CommonArguments(TypedDict, total=False):
    """The other arguments of a run. Each has a default."""

    as_of: Annotated[
        str,
        option(
            "",
            common=True,
            accepts=AS_OF,
            title="As of",
            help="The time or position at which the copies are exact: a time with its zone (`2026-01-31T00:00:00Z`), "
            "a date (00:00 UTC of that day), a GTID set or an LSN. Empty: now. The source must still have the log "
            "since then (PostgreSQL: in the `standing_slot`). Commits at that time are included.",
            example="a time such as 2026-01-31T00:00:00Z",
        ),
    ]
    refresh: Refresh | str
    read: Read
    limits: Limits
    on: On
    spark: Spark | str
    spark_conn_id: str
    allow: Allow
    plan_only: Annotated[
        bool | Template,
        option(
            False,
            common=True,
            accepts=FLAG,
            title="Show the plan only",
            help="Check everything, and show what a run would do and its approximate duration. Nothing is copied. The "
            "tasks after `preflight` are skipped.",
            example="true or false",
        ),
    ]


class Arguments(SourceArguments, CommonArguments, total=False):
    """The arguments of a run."""


@declaration
class WithoutEffect(Declaration):
    """Options without effect, which will be removed."""

    as_of_wait_seconds: int | Template = option(
        default=600,
        accepts=WHOLE_SECONDS,
        deprecated=True,
        help="Deprecated, without effect: a run no longer waits for a commit after the time in `as_of`.",
        example="a number such as 600",
    )


@cache
def places() -> Mapping[str, tuple[type[Declaration], ...]]:
    """Return the names of the arguments of a run, each with the classes whose objects it accepts."""
    hints = get_type_hints(Arguments, include_extras=True)
    return {name: tuple(classes_in(hint)) for name, hint in hints.items()}


@cache
def declared() -> tuple[Option, ...]:
    """Return the options of a run, in order."""
    found: list[Option] = []
    for name, hint in get_type_hints(Arguments, include_extras=True).items():
        for attribute in getattr(hint, "__metadata__", ()):
            own: Option = attribute.metadata["option"]
            found.append(replace(own, name=name, argument=name, place=name))
        found += [one for kind in places()[name] if kind is not Allow for one in declared_in(kind)]
    return (*found, *declared_in(WithoutEffect))


@cache
def options_by_name() -> Mapping[str, Option]:
    """Return the options of a run, by name."""
    return {one.name: one for one in declared()}


def of(name: str) -> Any:
    """Return the attribute of an options class that holds the option ``name``, with the declared default."""
    declared_option = options_by_name()[name]
    return field(default=declared_option.default, metadata={"option": declared_option})
