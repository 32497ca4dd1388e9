"""Steps that end in the middle of an operation on a lake, as if they were killed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_cdc.core.storage.folder import Storage


class Interrupted(BaseException):
    """Not an Exception: no code may catch it, as no code catches a kill."""


def interrupt_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Stop before the change to the lake with this number. A catalog's commit counts twice: before and after it."""
    count = 0

    def counted(name: str) -> None:
        original = getattr(Storage, name)

        def replacement(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise Interrupted
            return original(*arguments, **named)

        patch.setattr(Storage, name, replacement)

    for name in (
        "write_json",
        "create_json",
        "replace_json",
        "delete_file",
        "delete_folder",
        "delete_empty_folder",
        "rename_folder",
        "make_folder",
        "move_to",
        "adopt",
    ):
        counted(name)

    def commit(original: Callable[[], Any], table: str) -> Any:
        nonlocal count
        count += 1
        if count == number:
            raise Interrupted
        answer = original()
        count += 1
        if count == number:
            raise Interrupted
        return answer

    commits_fail(patch, commit)


def commits_fail(patch: pytest.MonkeyPatch, around: Callable[[Callable[[], Any], str], Any]) -> None:
    """Have ``around`` do in place of commits to tables of Iceberg: it is given the commit, and the table's name."""
    for kind in (RestCatalog, SqlCatalog):
        _around_commits(patch, kind, around)


def _around_commits(
    patch: pytest.MonkeyPatch, kind: type[Catalog], around: Callable[[Callable[[], Any], str], Any]
) -> None:
    original = kind.commit_table

    def commit_table(self: Catalog, table: Any, requirements: Any, updates: Any) -> Any:
        return around(lambda: original(self, table, requirements, updates), ".".join(table.name()))

    patch.setattr(kind, "commit_table", commit_table)
