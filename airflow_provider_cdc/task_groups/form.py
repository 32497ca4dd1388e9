"""What the DAGs that come with the package share: a form for the options of a run, and what it may name.

Whoever may trigger such a DAG fills in its params, but its tasks have Airflow's rights. So it takes only the
connections and targets that Airflow's configuration names, in the section `cdc`: `allowed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow.configuration import conf
from airflow.sdk import Param

from airflow_provider_cdc.core.kinds import only
from airflow_provider_cdc.core.options.declare import Option, expecting
from airflow_provider_cdc.core.options.run import declared
from airflow_provider_cdc.core.storage.uri import glob

ANY = ""
"""Any kind of source."""

_ALLOWED = {"source_conn_id": "source_conn_ids", "target": "targets"}
"""The options of which Airflow's configuration tells what they may be."""


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

    A form marks what has no default with a star; whoever empties another field gets its default. Where Airflow's
    configuration names connections or targets one by one, the form offers them, and a connection that it does not allow
    is refused by Airflow itself.

    :param kind: the kind of source, ``mysql`` or ``postgres``: options and choices that are for another have no place;
        `ANY`: they all have.
    :param defaults: defaults other than those that are declared, by the option's name.
    """
    return {option.name: _param(option, kind, _default(option, defaults)) for option in _shown(kind)}


def from_params(kind: str, **defaults: Any) -> dict[str, Any]:
    """The arguments of a `SnapshotTaskGroup` that takes its options from `params`, as templates.

    :param defaults: the same as those of `params`.
    """
    return {option.name: _template(option, _default(option, defaults)) for option in _shown(kind)}


def _shown(kind: str) -> Iterator[Option]:
    shown = [one for one in declared() if one.in_form and (kind == ANY or one.fits(kind))]
    # A form shows its sections in the order in which they come.
    return iter(sorted(shown, key=lambda one: one.section))


def _default(one: Option, defaults: Mapping[str, Any]) -> Any:
    """The value of the param where nobody gives one; None: somebody has to."""
    default = defaults.get(one.name, None if one.required else one.accepts.plain(one.default))
    if one.name not in _ALLOWED:
        return default
    known = allowed()[_ALLOWED[one.name]]
    if one.name == "source_conn_id" and default and not any(glob(pattern, default) for pattern in known):
        # A default that is not allowed would make the whole DAG invalid.
        default = None
    return known[0] if default is None and len(known) == 1 == len(_named(known)) else default


def _template(one: Option, default: Any) -> str:
    name = f"params.{one.name}"
    # What can be left empty says itself what that means.
    if default is None or one.accepts.holds(None):
        return f"{{{{ {name} }}}}"
    return f"{{{{ {default!r} if {name} is none else {name} }}}}"


def _param(one: Option, kind: str, default: Any) -> Param:
    facts: dict[str, Any] = {**one.accepts.schema_for(kind), "title": one.title, "description": _help(one, kind)}
    if one.section:
        facts["section"] = one.section
    if one.name in _ALLOWED:
        choices = allowed()[_ALLOWED[one.name]]
        if named := _named(choices):
            facts["examples"] = named
        if one.name == "source_conn_id" and choices and "*" not in choices:
            facts |= expecting(f"one of {', '.join(choices)}", pattern=_matching(choices))
    if default is None:
        return Param(**facts)
    if not isinstance(facts["type"], list):
        # Only what may be null has no star.
        facts["type"] = [facts["type"], "null"]
        if "enum" in facts:
            facts["enum"] = [*facts["enum"], None]
            facts["values_display"] = {**facts["values_display"], "null": f"the default: {default}"}
    return Param(default, **facts)


def _help(one: Option, kind: str) -> str:
    """What the option does, in the words of the form: it calls options by their titles, and marks nothing."""
    titles = {other.name: f'"{other.title}"' for other in declared() if other.in_form}
    own = one.accepts.schema.get("enum", ())

    def word(found: re.Match[str]) -> str:
        # A choice may have the name of an option.
        return found[1] if found[1] in own else titles.get(found[1], found[1])

    only_for = f"{only(one.feature)} only. " if one.feature and not kind else ""
    return only_for + re.sub("`([^`]*)`", word, one.help)


def _named(patterns: Sequence[str]) -> list[str]:
    """Those that stand for one connection or folder. ``{source}`` may stand in a target, too."""
    return [pattern for pattern in patterns if "*" not in pattern]


def _matching(patterns: Sequence[str]) -> str:
    return f"^({'|'.join('.*'.join(map(re.escape, pattern.split('*'))) for pattern in patterns)})$"
