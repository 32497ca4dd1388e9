"""The registered sinks, by the name of their format.

To add a sink, write its module, register it here, and run the contract tests on it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.base import Sink

SINKS = {"parquet": "airflow_provider_cdc.sinks.parquet:ParquetSink"}
"""Module and class of each format. A module is imported only when it is needed, because its libraries are large."""


def open_sink(format: str, lake: Storage) -> Sink:
    """Return a sink that publishes in ``lake``.

    :raises ConfigurationError: the format is unknown.
    """
    if format not in SINKS:
        raise ConfigurationError(
            f"unknown format {format!r}", where="parameter format", hint=f"choose one of {', '.join(sorted(SINKS))}"
        )
    module, name = SINKS[format].split(":")
    kind: Callable[[Storage], Sink] = getattr(import_module(module), name)
    return kind(lake)
