"""The parameters in the docstring of `SnapshotTaskGroup`, which editors show: the text of the options' declarations."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from airflow_provider_cdc.core.options.run import AuthorOptions, declared
from harness.documents.options import help_of

MODULE = Path(__file__).resolve().parents[3] / "airflow_provider_cdc/task_groups/snapshot.py"

# The group's other arguments follow, and are written by hand.
_OPTIONS = re.compile(r"(?<=\n)    :param source_conn_id: .*?(?=    :param group_id: )", re.DOTALL)


def with_declared_options(module: str) -> str:
    """Return the module's text with the docstring's options as they are declared now."""
    options = "".join(
        textwrap.fill(
            f":param {option.name}: {help_of(option).replace('`', '``')}",
            width=120,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
        for option in (*declared(), *declared(AuthorOptions))
    )
    return _OPTIONS.sub(lambda _: options, module)
