"""What only Airflow's side knows of the parameters of a run: how operators take them, and what may be asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, TypeVar

from airflow_provider_cdc.core.kinds import KINDS, only
from airflow_provider_cdc.core.options.declare import values_of
from airflow_provider_cdc.core.options.run import RunOptions, declared
from airflow_provider_cdc.core.storage.target import lake_of
from airflow_provider_cdc.core.storage.uri import LakeUri, glob
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def taking_options(constructor: Constructor) -> Constructor:
    """Let an operator's constructor, which has ``**kwargs``, show an argument for each option of a run.

    Airflow goes by what a signature shows: it fills in ``default_args`` there, and says what is missing.
    """
    shown = signature(constructor)
    *own_parameters, rest = shown.parameters.values()
    options = [
        Parameter(
            option.argument,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if option.required else option.default,
            annotation=Any,
        )
        for option in declared()
    ]
    constructor.__signature__ = shown.replace(parameters=[*own_parameters, *options, rest])  # type: ignore[attr-defined]
    return constructor


def take_options(arguments: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a run among a constructor's ``arguments``, with the defaults of those that are not there, and all
    other arguments."""
    options = {option.argument: arguments.get(option.argument, option.default) for option in declared()}
    return options, {name: value for name, value in arguments.items() if name not in options}


@dataclass(frozen=True)
class Allowed:
    """What a DAG's author lets its runs name: whoever may trigger a DAG chooses its params, and its tasks have the
    rights of Airflow, not those of that person.

    :param source_conn_ids: ids of connections, ``*`` for any run of characters; None: any connection.
    :param targets: URIs of folders; they and what lies below them is allowed, compared part by part. ``*`` stands for
        any run of characters in a part, ``*`` alone for any target, ``{source}`` for the id of the connection. None:
        any target.
    """

    source_conn_ids: Sequence[str] | None = None
    targets: Sequence[str] | None = None

    def check(self, source_conn_id: str, target: str, scratch: str = "") -> None:
        """:param scratch: empty: it lies in the target.
        :raises PreflightError: naming what is not allowed."""
        problems = []
        connection_ids = self.source_conn_ids
        if connection_ids is not None and not any(glob(pattern, source_conn_id) for pattern in connection_ids):
            problems.append(_not_allowed("source_conn_id", source_conn_id, connection_ids, "source_conn_ids"))
        for parameter, uri in (("target", target), ("scratch", scratch)):
            if self.targets is None or not uri or (lake := _lake(uri, source_conn_id)) is None:
                continue
            above = [pattern if pattern == "*" else lake_of(pattern, source_conn_id) for pattern in self.targets]
            if not any(map(lake.matches, above)):
                problems.append(_not_allowed(parameter, str(lake), above, "targets"))
        if problems:
            raise PreflightError(problems)


def _lake(target: str, source_conn_id: str) -> LakeUri | None:
    # A target that cannot be written to is refused where it is used.
    try:
        return LakeUri.parse(lake_of(target, source_conn_id))
    except ConfigurationError:
        return None


def _not_allowed(parameter: str, value: str, known: Sequence[str], setting: str) -> Problem:
    return Problem(
        f"parameter {parameter}",
        f"the DAG's author does not allow {value}",
        f"use one of {', '.join(known)}"
        if known
        else f"the DAG's owner has to list what it may use: {setting} "
        "of its SnapshotTaskGroup; of the DAGs that come with the package, in Airflow's configuration, section cdc "
        f"(AIRFLOW__CDC__{setting.upper()})",
    )


def check_conf(given: Mapping[str, Any] | None, known: Collection[str]) -> None:
    """Make sure that each key of a DAG run's conf means something: a misspelt one would be quietly ignored.

    :raises PreflightError: naming those that do not.
    """
    if unknown := sorted(set(given or ()) - set(known)):
        raise PreflightError(
            [
                Problem(f"conf key {key!r}", "the DAG has no such param", f"the params are {', '.join(sorted(known))}")
                for key in unknown
            ]
        )


def check_kind(options: RunOptions, kind: str) -> None:
    """Make sure that nothing is asked for that only another kind of source has: it would be quietly ignored.

    :param kind: of the source.
    :raises PreflightError: naming what is.
    """
    values = values_of(options)
    problems = [
        Problem(
            f"parameter {option.name}",
            f"it is for {only(option.feature)} sources, and this one is {KINDS[kind].title}",
            "leave it as it is",
        )
        for option in declared()
        if not option.fits(kind) and values[option.name] != option.default
    ]
    if problems:
        raise PreflightError(problems)
