"""Passes the options of a run to operators. This module also has the checks that concern only Airflow: the allowed
connections and targets, the keys of a conf, and the kind of the source."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, TypeVar

from airflow_provider_cdc.core.options.declare import values_of
from airflow_provider_cdc.core.options.run import RunOptions, declared
from airflow_provider_cdc.core.positions.kinds import KINDS, only
from airflow_provider_cdc.core.storage.uri import LakeUri, glob, lake_of
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def taking_options(constructor: Constructor) -> Constructor:
    """Add an argument for each option of a run to the signature of an operator's constructor. The constructor itself
    receives the options in ``**kwargs``.

    Airflow reads the signature to fill in ``default_args`` and to report missing arguments.
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
    """Split a constructor's ``arguments`` into the options of a run and all other arguments.

    Options that are not given get their defaults. A deprecated option with another value causes a warning.
    """
    options = {option.argument: arguments.get(option.argument, option.default) for option in declared()}
    for option in declared():
        if option.deprecated and options[option.argument] != option.default:
            warnings.warn(
                f"the option {option.argument} has no effect, and will be removed: do not set it",
                DeprecationWarning,
                stacklevel=2,
            )
    return options, {name: value for name, value in arguments.items() if name not in options}


@dataclass(frozen=True)
class Allowed:
    """The connections and targets that a DAG's author allows.

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

    def check(self, source_conn_id: str, target: str, scratch: str = "") -> None:
        """Check that the connection and the folders are allowed.

        :param scratch: the folder for runs in progress. Empty: the default folder, which is in the target.
        :raises PreflightError: the connection or a folder is not allowed. The error names the connection or the folder.
        """
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
        else f"ask the DAG's owner to list it in the argument {setting} "
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
                Problem(f"conf key {key!r}", "the DAG has no such param", f"the params are {', '.join(sorted(known))}")
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
            f"parameter {option.name}",
            f"applies only to {only(option.feature)} sources, but this source is {KINDS[kind].title}",
            "leave it at its default",
        )
        for option in declared()
        if not option.fits(kind) and values[option.name] != option.default
    ]
    if problems:
        raise PreflightError(problems)
