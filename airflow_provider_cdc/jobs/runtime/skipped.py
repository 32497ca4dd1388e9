"""Tables that turn out to be impossible to copy while the run is at work, where they are to be skipped.

Only a value without an Arrow type is a table's own affair then. It is left out of the commit, whichever step found out,
and all that was made of it is thrown away: nothing of it is ever published, and nothing of the others rests on it.
Whatever else goes wrong stops the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.runtime.progress import say


def reason(error: ValueNotRepresentable) -> str:
    """Why a table is skipped, in one line."""
    return f"{error.where}: {error.message}" if error.where else error.message


def table_of(error: ValueNotRepresentable, names: Iterable[str]) -> str | None:
    """The table that an error names; None if it could be more than one, or is none of them."""
    fitting = [name for name in names if error.where == name or error.where.startswith(f"{name}.")]
    return fitting[0] if len(fitting) == 1 else None


def check_some_left(copied: Collection[str], skipped: Mapping[str, str]) -> None:
    """Make sure that there is something to publish.

    :raises ValueNotRepresentable: every table would be skipped.
    """
    if not copied:
        raise ValueNotRepresentable(
            f"none of the tables can be copied: {'; '.join(skipped.values())}",
            where=", ".join(sorted(skipped)),
            hint="set unrepresentable to string, or correct the rows",
        )


def say_skipped(skipped: Mapping[str, str]) -> None:
    """Warn which tables are left out."""
    for name, why in sorted(skipped.items()):
        say(f"WARNING: {name} is SKIPPED and will not be published: {why}")
