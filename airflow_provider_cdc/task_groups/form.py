"""The params of a DAG that asks for a run, as `core.options` declares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import Param

from airflow_provider_cdc.core.option import Option
from airflow_provider_cdc.core.options import declared


def params(kind: str, **defaults: Any) -> dict[str, Param]:
    """A param for each option that has a place in a form.

    :param kind: the kind of source, ``mysql`` or ``postgres``: options that are for another have no param.
    :param defaults: defaults other than those that are declared, by the option's name.
    """
    return {one.name: _param(one, defaults) for one in _shown(kind)}


def from_params(kind: str) -> dict[str, Any]:
    """The arguments of a `SnapshotTaskGroup` that takes its options from `params`, as templates."""
    return {one.name: f"{{{{ params.{one.name} }}}}" for one in _shown(kind)}


def _shown(kind: str) -> Iterator[Option]:
    return (one for one in declared() if one.in_form and one.only in ("", kind))


def _param(one: Option, defaults: dict[str, Any]) -> Param:
    facts = {**one.accepts.schema, "title": one.title, "description": one.help.replace("`", "")}
    if one.required and one.name not in defaults:
        return Param(**facts)
    return Param(defaults.get(one.name, one.default), **facts)
