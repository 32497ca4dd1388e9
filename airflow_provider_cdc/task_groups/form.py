"""The trigger form of the DAGs that come with the package, and the connections and targets that these DAGs accept.

A user who may trigger such a DAG fills in the DAG's params, but the DAG's tasks run with Airflow's permissions. So the
DAG accepts only the connections and targets that are listed in Airflow's configuration, in the section `cdc` (see
`allowed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow.configuration import conf
from airflow.sdk import DAG, Param

from airflow_provider_cdc.core.options.arguments import declared
from airflow_provider_cdc.core.options.declare import Option, expecting
from airflow_provider_cdc.core.options.running import Allow
from airflow_provider_cdc.core.positions.kinds import only
from airflow_provider_cdc.core.storage.uri import glob

ANY = ""
"""Any kind of source."""

_ALLOWED = {"source_conn_id": "source_conn_ids", "target": "targets"}
"""The options whose values are restricted by Airflow's configuration, each with the name of the setting."""


_LIMITS = """
A user who may trigger this DAG fills in its params, but its tasks run with Airflow's rights. So the DAG accepts only
the connections and targets that the administrator lists in Airflow's configuration, section `cdc`, separated by commas:

- `source_conn_ids` (`AIRFLOW__CDC__SOURCE_CONN_IDS`): the allowed connections, by default `cdc_*`.
- `targets` (`AIRFLOW__CDC__TARGETS`), such as `s3://bucket/lake`: the folders in which, or below which, the DAG may
  publish. There is no default, because a safe place to write data to cannot be guessed.

`*` matches any run of characters in an id or in a part of a path; `*` alone matches anything.
"""


def allowed() -> dict[str, Any]:
    """Return the connections and targets that the shipped DAGs accept, from Airflow's configuration.

    Both settings are lists, separated by commas or blanks. ``*`` matches any run of characters.

    - ``source_conn_ids`` (``AIRFLOW__CDC__SOURCE_CONN_IDS``): the allowed connections, by default ``cdc_*``.
    - ``targets`` (``AIRFLOW__CDC__TARGETS``): the folders in which runs may publish. Subfolders are included. There is
      no default, because this package cannot guess where it is safe to write data.
    """
    return {
        name: conf.get("cdc", name, fallback=default).replace(",", " ").split()
        for name, default in (("source_conn_ids", "cdc_*"), ("targets", ""))
    }


def params(kind: str, **defaults: Any) -> dict[str, Param]:
    """Return a param for each option that the form shows. The common options are first.

    The form marks fields that have no default with a star. If the user empties one of the other fields, the default
    applies. If Airflow's configuration lists connections or targets without ``*``, the form offers them as choices.
    Airflow itself rejects a connection that the configuration does not allow.

    :param kind: the kind of source, ``mysql`` or ``postgres``. Options and choices of other kinds are left out. `ANY`:
        the options of all kinds are shown.
    :param defaults: defaults that differ from the declared defaults, by the name of the option.
    """
    return {option.name: _param(option, kind, _default(option, defaults)) for option in _shown(kind)}


def from_params(kind: str, **defaults: Any) -> dict[str, Any]:
    """Return templates as options for `SnapshotTaskGroup.of_options`. With these templates, the group takes its options
    from `params`.

    :param defaults: the same defaults as for `params`.
    """
    return {option.name: _template(option, _default(option, defaults)) for option in _shown(kind)}


def dag(dag_id: str, kind: str, description: str, doc_md: str | None, **defaults: Any) -> DAG:
    """Return a DAG that copies tables as its form says. A user who triggers the DAG can set only the params.

    :param kind: the kind of source, as for `params`.
    :param defaults: as for `params`.
    """
    # The DAG `control` uses this module, but not the task group.
    from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

    with DAG(
        dag_id,
        description=description,
        doc_md=f"{doc_md}\n{_LIMITS}",
        schedule=None,
        catchup=False,
        tags=["cdc", *([kind] if kind else [])],
        render_template_as_native_obj=True,
        params=params(kind, **defaults),
    ) as made:
        SnapshotTaskGroup.of_options(from_params(kind, **defaults), Allow(**allowed(), strict_conf=True))
    return made


def _shown(kind: str) -> Iterator[Option]:
    shown = [one for one in declared() if one.in_form and (kind == ANY or one.fits(kind))]
    # A form shows its sections in the order of their first params.
    sections = list(dict.fromkeys(one.section for one in shown))
    return iter(sorted(shown, key=lambda one: (bool(one.section), sections.index(one.section))))


def _default(one: Option, defaults: Mapping[str, Any]) -> Any:
    """Return the default of the param. None: the user must give a value."""
    default = defaults.get(one.name, None if one.required else one.accepts.plain(one.default))
    if one.name not in _ALLOWED:
        return default
    known = allowed()[_ALLOWED[one.name]]
    if one.name == "source_conn_id" and default and not any(glob(pattern, default) for pattern in known):
        # Ignore a default value that is not allowed, because it would make the whole DAG invalid.
        default = None
    return known[0] if default is None and len(known) == 1 == len(_named(known)) else default


def _template(one: Option, default: Any) -> str:
    name = f"params.{one.name}"
    # If the option accepts None, keep None and do not replace it with the default.
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
        # The form marks every field that may not be null with a star.
        facts["type"] = [facts["type"], "null"]
        if "enum" in facts:
            facts["enum"] = [*facts["enum"], None]
            facts["values_display"] = {**facts["values_display"], "null": f"the default: {default}"}
    return Param(default, **facts)


def _help(one: Option, kind: str) -> str:
    """Return the option's help as the form shows it, without markup and with titles instead of option names."""
    titles = {other.name: f'"{other.title}"' for other in declared() if other.in_form}
    own = one.accepts.schema.get("enum", ())

    def word(found: re.Match[str]) -> str:
        # A choice may have the same name as an option. Choices are not replaced.
        return found[1] if found[1] in own else titles.get(found[1], found[1])

    only_for = f"{only(one.feature)} only. " if one.feature and not kind else ""
    return only_for + re.sub("`([^`]*)`", word, one.help)


def _named(patterns: Sequence[str]) -> list[str]:
    """Return those patterns that name a single connection or folder. A target may contain ``{source}``."""
    return [pattern for pattern in patterns if "*" not in pattern]


def _matching(patterns: Sequence[str]) -> str:
    return f"^({'|'.join('.*'.join(map(re.escape, pattern.split('*'))) for pattern in patterns)})$"
