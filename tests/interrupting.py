"""Steps that end in the middle of an operation on a lake, as if they were killed there."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_cdc.core.storage.folder import Storage


class Interrupted(BaseException):
    """Not an Exception: no code may catch it, as no code catches a kill."""


def interrupt_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Stop before the change to the lake with this number."""
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
        "delete_file",
        "delete_folder",
        "delete_empty_folder",
        "rename_folder",
        "make_folder",
        "move_to",
        "adopt",
    ):
        counted(name)
