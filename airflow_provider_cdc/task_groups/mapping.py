"""Maps a `SnapshotTaskGroup` over several sources, so that each source gets its own group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow.sdk import task_group

from airflow_provider_cdc.core.options.arguments import options_by_name, places
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.arguments.options import LIMITS, Given, take_options

if TYPE_CHECKING:
    from airflow.sdk import XComArg

Group = TypeVar("Group")

_NAMED = {"map_index_template": "{{ task.source_conn_id }}"}
"""With this argument, Airflow's UI labels each instance of a mapped task with its source."""


class PartialGroup(Generic[Group]):
    """The result of `SnapshotTaskGroup.partial`: a group to which the arguments that differ from source to source must
    still be added.

    :param make: creates a group from the values of options.
    :param shared: the arguments that all groups have in common.
    """

    def __init__(self, make: Callable[..., Group], shared: Given) -> None:
        self._create = make
        self._shared = shared

    def expand(self, **lists: Sequence[object] | XComArg) -> Group:
        """Create one group for each element of a list, such as ``source_conn_id=["shop", "crm"]``.

        The list may be the output of another task. With several lists, one group is created for each combination.

        :raises ConfigurationError: an argument cannot differ from group to group.
        """
        found = dict(self._list_of(name, values) for name, values in lists.items())
        return self._mapped(list(found), lambda factory: factory.expand(**found))

    def _list_of(self, name: str, values: Any) -> tuple[str, Any]:
        """Return the option that an argument sets, and its values."""
        # Any value shows which option the argument sets, if it is not the option's default.
        is_known = isinstance(values, (list, tuple))
        given = [self._given("expand", {name: value}) for value in (values if is_known else ["{{ x }}"])]
        names = {option for one in given for option in one} or {*self._given("expand", {name: "{{ x }}"})}
        if len(names) > 1:
            raise ConfigurationError(
                f"the values of {name} set different options", hint="use expand_kwargs with one mapping for each group"
            )
        (option,) = names
        default = options_by_name()[option].default
        return option, [one.get(option, default) for one in given] if is_known else values

    def expand_kwargs(self, arguments: Sequence[Mapping[str, object]]) -> Group:
        """Create one group for each element of a list. Each element is a mapping with the arguments of one group.

        Options that an element lacks get their defaults.

        :raises ConfigurationError: an argument cannot differ from group to group, or a required argument is missing.
        """
        if not isinstance(arguments, (list, tuple)) or not all(isinstance(element, Mapping) for element in arguments):
            raise ConfigurationError(
                "expand_kwargs needs a list of objects, and the list must be known when the DAG is parsed",
                hint="to map over the output of another task, use expand(source_conn_id=…)",
            )
        given = [self._given("expand_kwargs", element) for element in arguments]
        names = list(dict.fromkeys(name for element in given for name in element))
        defaults = {name: options_by_name()[name].default for name in names}
        whole = [{**defaults, **element} for element in given]
        if missing := [name for element in whole for name, value in element.items() if value is MISSING]:
            raise ConfigurationError(
                f"an element of expand_kwargs has no {missing[0]}",
                hint="set this argument in all elements of the list, or in no element",
            )
        return self._mapped(names, lambda factory: factory.expand_kwargs(whole))

    def _given(self, owner: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the options that the arguments set."""
        known = [name for name in places() if name != "allow"]
        fixed = [name for name in arguments if name in ("allow", *LIMITS)]
        given = take_options(owner, {name: value for name, value in arguments.items() if name not in fixed})
        for name in (*given.others, *fixed):
            raise ConfigurationError(
                f"the argument {name!r} cannot differ from group to group",
                hint=f"these arguments can differ from group to group: {', '.join(known)}",
            )
        if twice := (arguments.keys() & self._shared.arguments) | (given.values.keys() & self._shared.values.keys()):
            raise ConfigurationError(
                f"{min(twice)} is set for all groups and for each group", hint=f"leave it out of partial or of {owner}"
            )
        return given.values

    def _mapped(self, names: Sequence[str], expand: Callable[[Any], Any]) -> Group:
        others, shared = self._shared.others, self._shared
        others = {**others, "default_args": {**_NAMED, **(others.get("default_args") or {})}}

        def each(**own: Any) -> Group:
            return self._create({**shared.values, **own}, shared.allow, **others)

        # Set the signature, because Airflow reads the names of the parameters from it.
        each.__signature__ = Signature(  # type: ignore[attr-defined]
            [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
        )
        group_id = f"each_{others.get('group_id', 'cdc_snapshot')}"
        group: Group = expand(task_group(group_id=group_id, prefix_group_id=False)(each))
        return group
