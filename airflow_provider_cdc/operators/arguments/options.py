"""Passes the options of a run to operators. This module also has the checks that concern only Airflow: the allowed
connections and targets, the keys of a conf, and the kind of the source."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar

from airflow.exceptions import AirflowProviderDeprecationWarning

from airflow_provider_cdc.core.options.arguments import (
    REMOVED_IN,
    SourceArguments,
    declared,
    options_by_name,
    places,
)
from airflow_provider_cdc.core.options.declare import Option, declared_in, nearest, unfit, values_of
from airflow_provider_cdc.core.options.flat import arguments_of, values_given
from airflow_provider_cdc.core.options.run import RunOptions
from airflow_provider_cdc.core.options.running import Allow
from airflow_provider_cdc.core.positions.kinds import KINDS, only
from airflow_provider_cdc.core.storage.uri import LakeUri, glob, lake_of
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem

Constructor = TypeVar("Constructor", bound=Callable[..., None])

_NO_LIMITS = Allow()


ATTRIBUTES = tuple(one.argument for one in declared())
"""The names of the operators' attributes that hold the options of a run."""


@dataclass(frozen=True)
class Given:
    """The arguments of an operator or a task group.

    ``values`` has the values of the options that are set, by option name; ``others`` the arguments that are no options.
    ``arguments`` are the names of the arguments that set options.
    """

    values: Mapping[str, Any]
    allow: Allow
    others: dict[str, Any]
    arguments: Collection[str] = ()

    @property
    def required(self) -> dict[str, Any]:
        """The values of the options without defaults, by option name."""
        return {name: self.values[name] for name in SourceArguments.__annotations__}

    @property
    def attributes(self) -> dict[str, Any]:
        """The values of all options, by the name of the operator's attribute."""
        return {one.argument: self.values.get(one.name, one.default) for one in declared()}


def accepting_options(constructor: Constructor) -> Constructor:
    """Show the arguments of a run in the signature of a constructor, which receives them in ``**kwargs``.

    Airflow reads the signature of an operator to fill in ``default_args`` and to report missing arguments. Editors and
    ``help`` show it.
    """
    shown = signature(constructor)
    *own, rest = shown.parameters.values()
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_default(name), annotation=Any)
        for name in places()
        if name not in shown.parameters
    ]
    constructor.__signature__ = shown.replace(parameters=[*own, *more, rest])  # type: ignore[attr-defined]
    return constructor


def _default(name: str) -> Any:
    if name in SourceArguments.__annotations__:
        return Parameter.empty
    kinds = places()[name]
    return kinds[0]() if kinds else options_by_name()[name].default


def take_options(owner: str, arguments: Mapping[str, Any]) -> Given:
    """Divide the arguments of ``owner`` into options and others.

    :raises ConfigurationError: a value is not accepted, or an option is set twice.
    """
    flat = {old[name].name: value for name, value in arguments.items() if name in (old := _flat_arguments())}
    limits = {name: value for name, value in arguments.items() if name in LIMITS}
    values = values_given({name: arguments[name] for name in places() if name in arguments and name != "allow"})
    if (twice := flat.keys() & values.keys()) or (limits and "allow" in arguments):
        name = min([*twice, *limits])
        hint = f"set only {_places_of_options()[name]}"
        raise ConfigurationError(f"{owner} sets {name} twice", where=f"argument {name}", hint=hint)
    values |= flat
    allow = arguments.get("allow", Allow(**limits))
    if not isinstance(allow, Allow):
        raise unfit("allow", allow, [Allow])
    if flat or limits:
        warn_of_flat(owner, [*flat, *limits], values, allow)
    own = {*places(), *_flat_arguments(), *limits}
    others = {name: value for name, value in arguments.items() if name not in own}
    return Given(values, allow, others, {name for name in arguments if name in own})


# The options as arguments of their own, as until version 0.3.

LIMITS = [one.name for one in declared_in(Allow)]


@cache
def _flat_arguments() -> Mapping[str, Option]:
    """Return the options by the names of the arguments that only set this option."""
    return {name: one for one in declared() for name in (one.name, one.argument) if name not in places()}


@cache
def _places_of_options() -> Mapping[str, str]:
    return {one.name: one.place for one in (*declared(), *declared_in(Allow))}


def warn_of_flat(owner: str, names: Sequence[str], values: Mapping[str, Any], allow: Allow = _NO_LIMITS) -> None:
    """Warn of options that are given as arguments of their own, and show what to write instead.

    :param names: the names of these options.
    :param values: all options that are set.
    """
    lines = []
    for name, value in {**arguments_of(values), "allow": allow}.items():
        if {one.name for kind in places()[name] for one in declared_in(kind)} & {*names}:
            lines.append(f"    {name}={value!r},")
    for name in names:
        option = options_by_name().get(name)
        if option is not None and option.deprecated:
            lines.append(f"    without {name}, which has no effect")
        elif option is not None and option.by_table and not isinstance(values[name], Mapping):
            example = {"name": "shop.orders", option.place.partition(".")[2]: "…"}
            lines.append(f"    tables as a template of a list with objects such as {example}, instead of {name}")
    text = f"from version {REMOVED_IN} on, {owner} has no argument {', '.join(names)}. Write\n" + "\n".join(lines)
    warnings.warn_explicit(text, AirflowProviderDeprecationWarning, *_caller())


def _caller() -> tuple[str, int]:
    """Return the file and the line that called this package."""
    package, frame = str(Path(__file__).parents[2]), sys._getframe()
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(package) or "/airflow/sdk/" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@dataclass(frozen=True)
class Allowed:
    """The connections and targets that a DAG's author allows (`Allow`).

    A user who may trigger the DAG chooses the DAG's params, but the DAG's tasks run with the permissions of Airflow,
    not with the permissions of the user.

    :param source_conn_ids: the ids of the allowed connections. ``*`` matches any run of characters. None: any
        connection is allowed.
    :param targets: URIs of folders. The folders and everything below them are allowed. URIs are compared part by part.
        ``*`` matches any run of characters in one part. ``*`` alone matches any target. ``{source}`` stands for the id
        of the connection. None: any target is allowed.
    """

    source_conn_ids: Sequence[str] | None = None
    targets: Sequence[str] | None = None

    def check(
        self,
        source_conn_id: str,
        target: str,
        scratch: str = "",
        read_conn_ids: Sequence[str] = (),
        log_conn_id: str = "",
    ) -> None:
        """Check that the connections and the folders are allowed.

        :param scratch: the folder for runs in progress. Empty: the default folder, which is in the target.
        :param read_conn_ids: the connections to replicas. ``source_conn_ids`` must allow them, too.
        :param log_conn_id: the connection to the server from which the log is read; empty: the source.
        :raises PreflightError: a connection or a folder is not allowed. The error names the connection or the folder.
        """
        problems = []
        patterns = self.source_conn_ids
        named = [("source_conn_id", source_conn_id), *(("read_conn_ids", name) for name in read_conn_ids)]
        named += [("log_conn_id", log_conn_id)] if log_conn_id else []
        for parameter, name in named:
            if patterns is not None and not any(glob(pattern, name) for pattern in patterns):
                problems.append(_not_allowed(parameter, name, patterns, "source_conn_ids"))
        for parameter, uri in (("target", target), ("scratch", scratch)):
            if self.targets is None or not uri or (lake := _lake(uri, source_conn_id)) is None:
                continue
            above = [pattern if pattern == "*" else lake_of(pattern, source_conn_id) for pattern in self.targets]
            if not any(map(lake.matches, above)):
                problems.append(_not_allowed(parameter, str(lake), above, "targets"))
        if problems:
            raise PreflightError(problems)


def _lake(target: str, source_conn_id: str) -> LakeUri | None:
    # Do not report an invalid target here, because the code that uses the target rejects an invalid target.
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
        else f"ask the DAG's owner to list it in Allow.{setting} "
        "of the SnapshotTaskGroup, or, for the DAGs of this package, in Airflow's configuration, section cdc "
        f"(AIRFLOW__CDC__{setting.upper()})",
    )


def check_conf(given: Mapping[str, Any] | None, known: Collection[str]) -> None:
    """Check that each key of a DAG run's conf is a param. Without this check, a misspelt key would be silently ignored.

    :raises PreflightError: some keys are not params. The error names these keys.
    """
    if unknown := sorted(set(given or ()) - set(known)):
        raise PreflightError(
            [
                Problem(f"conf key {key!r}", "the DAG has no such param", nearest(key, sorted(known), "param"))
                for key in unknown
            ]
        )


def check_kind(options: RunOptions, kind: str) -> None:
    """Check that no option is set that only another kind of source supports. Without this check, such an option would
    be silently ignored.

    :param kind: the kind of the source.
    :raises PreflightError: such options are set. The error names these options.
    """
    values = values_of(options)
    problems = [
        Problem(
            option.where,
            f"applies only to {only(option.feature)} sources, but this source is {KINDS[kind].title}",
            "leave it at its default",
        )
        for option in declared()
        if not option.fits(kind) and values[option.name] != option.accepts.plain(option.default)
    ]
    if problems:
        raise PreflightError(problems)
