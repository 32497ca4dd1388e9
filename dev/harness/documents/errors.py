"""Generates the table of errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc import errors


def error_table() -> Iterator[Sequence[str]]:
    yield "error", "code", "Airflow"
    for name, kind in sorted(vars(errors).items()):
        if not (isinstance(kind, type) and issubclass(kind, errors.CdcError)) or kind in _ROOTS:
            continue
        retried = "fails" if issubclass(kind, errors.TerminalError) else "retries"
        yield f"[{name}](errors.md#{name.lower()})", kind.code, retried


_ROOTS = (errors.CdcError, errors.TerminalError, errors.TransientError)
