"""Modules that are imported when they are first used: Airflow parses the files of DAGs all the time, and PyArrow alone
takes as long as all of ours."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """What stands for a module until something of it is asked for.

    :param name: its full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
