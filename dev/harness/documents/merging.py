"""The table of the options with merged tables. The cases of the tests are its source."""

from __future__ import annotations

from collections.abc import Iterator

from tests.consistency.merge_matrix import ELSEWHERE, MATRIX

_KINDS = {"mysql": "MySQL", "postgres": "PostgreSQL"}


def merge_table() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table, the header first."""
    yield "option", "shards in one source", "shards in several sources"
    for case in (*MATRIX, *ELSEWHERE):
        only = f" ({_KINDS[case.kinds[0]]})" if len(case.kinds) == 1 else ""
        yield f"{case.option}{only}", case.result, case.across or "the same"
