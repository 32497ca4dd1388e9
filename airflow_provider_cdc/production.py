"""The production targets of a connection. The copies in these folders belong to the plain assets of the tables.
The URI of a plain asset has no query: it names neither a target nor the past.

Airflow's setting ``production_targets`` in the section ``cdc`` (``AIRFLOW__CDC__PRODUCTION_TARGETS``) names these
folders, separated by commas or blanks. ``s3://lake/raw`` applies to all connections, ``cdc_shop=s3://lake/shop`` to one
connection. As in ``targets``, subfolders are included. ``*`` matches any run of characters within one part of a path,
or in the id of a connection. ``*`` alone matches any folder. ``{source}`` stands for the id of the connection.

Without this setting, the production target depends on the setting ``targets``. That setting names the folders in which
the shipped DAGs may publish:

- If ``targets`` names no folder, every target counts as a production target, because there may be only one target.
- If ``targets`` names one folder, that folder is the production target.
- If ``targets`` allows several folders, it is unknown which of them is the production target. In this case, no folder
  counts as a production target, and a DAG that uses the plain asset of a table is rejected when it is parsed.
  Otherwise, such a DAG might run for copies in a sandbox, or might never run again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow.configuration import conf

from airflow_provider_cdc.core.storage.uri import LakeUri, glob, lake_of
from airflow_provider_cdc.errors import ConfigurationError

VARIABLE = "AIRFLOW__CDC__PRODUCTION_TARGETS"

_FOLDER = re.compile(r"\*$|/|[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class ProductionTargets:
    """The production targets of a connection, as patterns of folders. ``named`` is true if the setting
    ``production_targets`` names the folders. Otherwise, the production targets are assumed."""

    patterns: tuple[str, ...]
    named: bool

    def has(self, lake: str) -> bool:
        """Return whether ``lake``, the URI of a target, is a production target or a subfolder of a production
        target."""
        return any(map(LakeUri.parse(lake).matches, self.patterns))


def production_targets(source_conn_id: str) -> ProductionTargets:
    """Return the production targets of a connection according to Airflow's present configuration.

    :raises ConfigurationError: the setting is malformed.
    """
    if entries := _listed("production_targets"):
        pairs = [_pair(entry) for entry in entries]
        folders = [folder for connection, folder in pairs if glob(connection, source_conn_id)]
        return ProductionTargets(tuple(_pattern(folder, source_conn_id) for folder in folders), named=True)
    allowed = _listed("targets")
    if len(allowed) > 1 or any("*" in folder for folder in allowed):
        return ProductionTargets((), named=False)
    return ProductionTargets(tuple(_pattern(folder, source_conn_id) for folder in allowed) or ("*",), named=False)


def check_named(source_conn_id: str) -> None:
    """Check that the production targets of a connection are known.

    :raises ConfigurationError: the production targets are unknown.
    """
    targets = production_targets(source_conn_id)
    if targets.patterns:
        return
    why = (
        f"{VARIABLE} names no target for this connection"
        if targets.named
        else f"AIRFLOW__CDC__TARGETS allows several targets, and {VARIABLE} is not set"
    )
    raise ConfigurationError(
        f"cannot tell which target of {source_conn_id} is the production target: {why}",
        where="table_asset",
        hint=f"where Airflow parses DAGs and runs tasks, set the environment variable {VARIABLE} to the production "
        f"target. Examples: {VARIABLE}=s3://lake/raw (for all connections), "
        f"{VARIABLE}={source_conn_id}=s3://lake/raw (for this connection). Or pass the target to table_asset",
    )


def _listed(setting: str) -> list[str]:
    return str(conf.get("cdc", setting, fallback="")).replace(",", " ").split()


def _pair(entry: str) -> tuple[str, str]:
    """Split an entry into the pattern of connections and the pattern of folders. A folder may also contain an equals
    sign."""
    connection, equals, folder = entry.partition("=")
    if equals and not _FOLDER.match(entry) and _FOLDER.match(folder):
        return connection, folder
    return "*", entry


def _pattern(folder: str, source_conn_id: str) -> str:
    try:
        return folder if folder == "*" else lake_of(folder, source_conn_id, "setting")
    except ConfigurationError as error:
        raise ConfigurationError(error.message, where=VARIABLE, hint=error.hint) from error
