"""Imports modules at their first use. Airflow parses DAG files continually, and importing PyArrow alone takes as long
as importing the rest of this package."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module, which is imported when an attribute is accessed.

    :param name: the module's full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
