"""Handles tables that are skipped because a step finds, during the run, that they cannot be copied.

During a run, there are two reasons to skip a table: it has a value that no Arrow type holds, or the server cannot read
it. The table is then left out of the commit, and its files are discarded. So nothing of the table is published, and the
other tables do not depend on it. All other errors stop the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_provider_cdc.errors import CdcError, TableUnreadable, ValueNotRepresentable
from airflow_provider_cdc.jobs.runtime.progress import say

TABLE_ERRORS = (ValueNotRepresentable, TableUnreadable)
"""The errors because of which a table may be skipped."""


def reason(error: CdcError) -> str:
    """Return the reason why a table is skipped, in one line."""
    return f"{error.where}: {error.message}" if error.where else error.message


def table_of(error: ValueNotRepresentable, names: Iterable[str]) -> str | None:
    """Return the table that an error names; None: the error matches none of ``names``, or several of them."""
    fitting = [name for name in names if error.where == name or error.where.startswith(f"{name}.")]
    return fitting[0] if len(fitting) == 1 else None


def check_some_left(copied: Collection[str], skipped: Mapping[str, str]) -> None:
    """Check that at least one table is left to publish.

    :raises ValueNotRepresentable: all tables would be skipped.
    """
    if not copied:
        raise ValueNotRepresentable(
            f"none of the tables can be copied: {'; '.join(skipped.values())}",
            where=", ".join(sorted(skipped)),
            hint="repair the tables, correct the rows, or set the option `unrepresentable` to `string`",
        )


def say_skipped(skipped: Mapping[str, str]) -> None:
    """Print a warning for each table that is left out."""
    for name, why in sorted(skipped.items()):
        say(f"WARNING: {name} is SKIPPED and will not be published: {why}")
