"""Maps a `SnapshotTaskGroup` over several sources, so that each source gets its own group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow.sdk import task_group

from airflow_provider_cdc.core.options.run import declared
from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import XComArg

Group = TypeVar("Group")

_NAMED = {"map_index_template": "{{ task.source_conn_id }}"}
"""With this argument, Airflow's UI labels each instance of a mapped task with its source."""


class PartialGroup(Generic[Group]):
    """The result of `SnapshotTaskGroup.partial`: a group to which the arguments that differ from source to source must
    still be added.

    :param make: creates a group.
    :param shared: the arguments that all groups have in common.
    """

    def __init__(self, make: Callable[..., Group], shared: Mapping[str, Any]) -> None:
        self._make = make
        self._shared = dict(shared)

    def expand(self, **lists: Sequence[object] | XComArg) -> Group:
        """Create one group for each element of a list, such as ``source_conn_id=["shop", "crm"]``.

        The list may be the output of another task. With several lists, one group is created for each combination.

        :raises ConfigurationError: an argument cannot differ from group to group.
        """
        return self._mapped(list(lists), lambda factory: factory.expand(**lists))

    def expand_kwargs(self, arguments: Sequence[Mapping[str, object]]) -> Group:
        """Create one group for each element of a list. Each element is a mapping with the arguments of one group.

        Arguments that an element lacks get their defaults.

        :raises ConfigurationError: an argument cannot differ from group to group, or a required argument is missing.
        """
        if not isinstance(arguments, (list, tuple)) or not all(
            isinstance(element_options, Mapping) for element_options in arguments
        ):
            raise ConfigurationError(
                "expand_kwargs needs a list of objects, and the list must be known when the DAG is parsed",
                hint="to map over the output of another task, use expand(source_conn_id=…)",
            )
        names = list(dict.fromkeys(name for element_options in arguments for name in element_options))
        self._check(names)
        defaults = {
            option.name: option.default for option in declared() if not option.required and option.name in names
        }
        whole = [{**defaults, **element_options} for element_options in arguments]
        for element_options in whole:
            if missing := [name for name in names if name not in element_options]:
                raise ConfigurationError(
                    f"an element of expand_kwargs has no {missing[0]}",
                    hint="set this argument in all elements of the list, or in no element",
                )
        return self._mapped(names, lambda factory: factory.expand_kwargs(whole))

    def _check(self, names: Sequence[str]) -> None:
        option_names = [option.name for option in declared()]
        for name in names:
            if name not in option_names:
                raise ConfigurationError(
                    f"the argument {name!r} cannot differ from group to group",
                    hint=f"these arguments can differ from group to group: {', '.join(option_names)}",
                )

    def _mapped(self, names: Sequence[str], expand: Callable[[Any], Any]) -> Group:
        self._check(names)
        shared = {**self._shared, "default_args": {**_NAMED, **(self._shared.get("default_args") or {})}}

        def each(**own: Any) -> Group:
            return self._make(**shared, **own)

        # Set the signature, because Airflow reads the names of the parameters from it.
        each.__signature__ = Signature(  # type: ignore[attr-defined]
            [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
        )
        group_id = f"each_{self._shared.get('group_id', 'cdc_snapshot')}"
        group: Group = expand(task_group(group_id=group_id, prefix_group_id=False)(each))
        return group
