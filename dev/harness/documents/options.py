"""Generates the table of options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc.core.options.declare import Option, declared_in
from airflow_provider_cdc.core.options.lake import CleanOptions
from airflow_provider_cdc.core.options.run import AuthorOptions, declared
from airflow_provider_cdc.core.positions.kinds import only


def option_table() -> Iterator[Sequence[str]]:
    yield "option", "default", "what it does"
    for one in (*declared(), *declared(AuthorOptions)):
        yield f"`{one.name}`", _default(one), help_of(one) + (_FIXED if one.fixed else "")


def clean_table() -> Iterator[Sequence[str]]:
    yield "option", "default", "what it does"
    for one in declared_in(CleanOptions):
        yield f"`{one.name}`", _default(one), help_of(one)


def help_of(one: Option) -> str:
    """The help of an option, with the kind of source that it is for."""
    return f"{only(one.feature)}: {one.help}" if one.feature else one.help


_FIXED = " No template."


def _default(one: Option) -> str:
    if one.required:
        return "required"
    if one.default in (None, ""):
        return ""
    return f"`{str(one.default).lower() if isinstance(one.default, bool) else one.default}`"
