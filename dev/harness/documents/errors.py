"""Generates the table of errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from airflow_provider_cdc import errors


def error_table() -> Iterator[Sequence[str]]:
    yield "code", "error", "Airflow", "in short"
    for kind in vars(errors).values():
        if not (isinstance(kind, type) and issubclass(kind, errors.CdcError)) or kind in _ROOTS:
            continue
        retried = "retries" if issubclass(kind, errors.TransientError) else "fails the task at once"
        # Use only the first paragraph, so that a row stays short.
        summary = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
        yield kind.code, f"[{kind.__name__}](#{kind.__name__.lower()})", retried, summary.partition(". ")[0].rstrip(".")


_ROOTS = (errors.CdcError, errors.TerminalError, errors.TransientError)
