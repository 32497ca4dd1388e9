"""The sinks, by the name of their format.

To add one: write its module, register it here, and run the contract suite on it.
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
"""Where the class of each format is: modules are imported when they are needed, for their libraries are large."""


def open_sink(format: str, lake: Storage) -> Sink:
    """The sink that publishes in ``lake``.

    :raises ConfigurationError: there is no such format.
    """
    if format not in SINKS:
        raise ConfigurationError(
            f"there is no format {format!r}", where="parameter format", hint=f"choose one of {', '.join(sorted(SINKS))}"
        )
    module, name = SINKS[format].split(":")
    kind: Callable[[Storage], Sink] = getattr(import_module(module), name)
    return kind(lake)
