"""The target of a run. A DAG sets the target to the URI of a folder in the lake. The URI may contain a placeholder for
the source."""

from __future__ import annotations

import re

from airflow_provider_cdc.core.storage.uri import LakeUri, redacted
from airflow_provider_cdc.core.tables.names import safe_name
from airflow_provider_cdc.errors import ConfigurationError

SOURCE_PLACEHOLDER = "{source}"


def lake_of(target: str, source_conn_id: str, parameter: str = "target") -> str:
    """Return the URI of the folder to publish in: ``target``, with ``{source}`` replaced by the id of the connection.

    The id is encoded like parts of table names, so it is one part of the path: bytes other than ASCII letters, digits,
    ``_ - $`` become ``~`` and two hexadecimal digits.

    :raises ConfigurationError: ``target`` is not a valid folder.
    """
    uri = target.replace(SOURCE_PLACEHOLDER, safe_name(source_conn_id))
    if match := re.search(r"\{[^/]*\}", redacted(uri)):
        raise ConfigurationError(
            f"the {parameter} has an unknown placeholder {match[0]}",
            where=f"parameter {parameter}",
            hint=f"use only {SOURCE_PLACEHOLDER}, which stands for the id of the connection to the source",
        )
    return str(LakeUri.parse(uri))
