"""What the DAGs that come with the package share: a form for the options of a run, and what it may name.

Whoever may trigger such a DAG fills in its params, but its tasks have Airflow's rights. So it takes only the
connections and targets that Airflow's configuration names, in the section `cdc`: `allowed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from airflow.configuration import conf
from airflow.sdk import Param

from airflow_provider_cdc.core.kinds import only
from airflow_provider_cdc.core.options.declare import Option
from airflow_provider_cdc.core.options.run import declared

ANY = ""
"""Any kind of source."""


def allowed() -> dict[str, Any]:
    """The arguments ``source_conn_ids`` and ``targets`` of a `SnapshotTaskGroup`, as Airflow is configured.

    Both are lists, separated by commas or blanks, in which ``*`` stands for any run of characters:

    - ``source_conn_ids`` (``AIRFLOW__CDC__SOURCE_CONN_IDS``), by default ``cdc_*``: connections made for this purpose.
    - ``targets`` (``AIRFLOW__CDC__TARGETS``): the folders in which, or below which, may be published. There is no
      default: where data may be written to is nothing to be guessed.
    """
    return {
        name: conf.get("cdc", name, fallback=default).replace(",", " ").split()
        for name, default in (("source_conn_ids", "cdc_*"), ("targets", ""))
    }


def params(kind: str, **defaults: Any) -> dict[str, Param]:
    """A param for each option that has a place in a form, the common ones first.

    Where Airflow's configuration names connections or targets one by one, the form offers them, and a connection that
    it does not allow is refused by Airflow itself.

    :param kind: the kind of source, ``mysql`` or ``postgres``: options and choices that are for another have no place;
        `ANY`: they all have.
    :param defaults: defaults other than those that are declared, by the option's name.
    """
    return {one.name: _param(one, kind, defaults) for one in _shown(kind)}


def from_params(kind: str) -> dict[str, Any]:
    """The arguments of a `SnapshotTaskGroup` that takes its options from `params`, as templates."""
    return {one.name: f"{{{{ params.{one.name} }}}}" for one in _shown(kind)}


def _shown(kind: str) -> Iterator[Option]:
    shown = [one for one in declared() if one.in_form and (kind == ANY or one.fits(kind))]
    # A form shows its sections in the order in which they come.
    return iter(sorted(shown, key=lambda one: one.section))


def _param(one: Option, kind: str, defaults: dict[str, Any]) -> Param:
    facts: dict[str, Any] = {**one.accepts.schema_for(kind), "title": one.title}
    facts["description"] = (f"{only(one.feature)} only. " if one.feature and not kind else "") + one.help.replace(
        "`", ""
    )
    if one.section:
        facts["section"] = one.section
    # A form shows what has no value as required.
    default = None if one.required else one.accepts.plain(one.default)
    default = defaults.get(one.name, default)
    patterns = {"source_conn_id": "source_conn_ids", "target": "targets"}.get(one.name)
    if patterns is not None:
        known = allowed()[patterns]
        named = [pattern for pattern in known if not set(pattern) & set("*{")]
        if named:
            facts["examples"] = named
        if one.name == "source_conn_id" and known and "*" not in known:
            facts["pattern"] = _matching(known)
            # A default that is not allowed would make the whole DAG invalid.
            default = default if default and re.search(facts["pattern"], default) else None
        if default is None and known == named and len(named) == 1:
            (default,) = named
    return Param(**facts) if default is None else Param(default, **facts)


def _matching(patterns: Sequence[str]) -> str:
    return f"^({'|'.join('.*'.join(map(re.escape, pattern.split('*'))) for pattern in patterns)})$"
