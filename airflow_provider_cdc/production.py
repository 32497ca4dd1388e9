"""The production targets of a connection: the folders whose copies the plain assets of its tables stand for.

Airflow's setting ``production_targets`` in the section ``cdc`` names them (``AIRFLOW__CDC__PRODUCTION_TARGETS``),
separated by commas or blanks: ``s3://lake/raw`` for all connections, ``cdc_shop=s3://lake/shop`` for one. As in
``targets``, folders below are meant, too, ``*`` stands for any run of characters within a part (``*`` alone for any
folder, and in the id of a connection for any run of characters), and ``{source}`` for the id of the connection.

Without the setting, ``targets`` decides, which names the folders that the shipped DAGs may publish in:

- It names none: every target counts as production. Nothing shows that there is more than one.
- It names one folder: that one is the production target.
- It allows several: nobody can tell which of them is production. So none is, and a DAG that asks for the plain asset of
  a table is refused when it is parsed, which is better than one that runs for copies in a sandbox, or never again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow.configuration import conf

from airflow_provider_cdc.core.storage.target import lake_of
from airflow_provider_cdc.core.storage.uri import LakeUri, glob
from airflow_provider_cdc.errors import ConfigurationError

VARIABLE = "AIRFLOW__CDC__PRODUCTION_TARGETS"

_FOLDER = re.compile(r"\*$|/|[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class ProductionTargets:
    """The production targets of a connection, as patterns of folders. ``named``: the setting says which they are;
    otherwise they are assumed."""

    patterns: tuple[str, ...]
    named: bool

    def has(self, lake: str) -> bool:
        """Whether ``lake``, the URI of a target, is one of the folders, or below one."""
        return any(map(LakeUri.parse(lake).matches, self.patterns))


def production_targets(source_conn_id: str) -> ProductionTargets:
    """The production targets of a connection, as Airflow is configured now.

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
    """Make sure that it is known which targets are production.

    :raises ConfigurationError: it is not.
    """
    targets = production_targets(source_conn_id)
    if targets.patterns:
        return
    why = (
        f"{VARIABLE} names none for it"
        if targets.named
        else f"AIRFLOW__CDC__TARGETS allows several, and {VARIABLE} names none"
    )
    raise ConfigurationError(
        f"it is not known which target of {source_conn_id} is production: {why}",
        where="table_asset",
        hint=f"name it wherever Airflow parses DAGs and runs tasks: {VARIABLE}=s3://lake/raw for all connections, or "
        f"{VARIABLE}={source_conn_id}=s3://lake/raw for this one. Or give table_asset the target that is meant",
    )


def _listed(setting: str) -> list[str]:
    return str(conf.get("cdc", setting, fallback="")).replace(",", " ").split()


def _pair(entry: str) -> tuple[str, str]:
    """The pattern of connections, and that of folders. A folder may hold an equals sign, too."""
    connection, equals, folder = entry.partition("=")
    if equals and not _FOLDER.match(entry) and _FOLDER.match(folder):
        return connection, folder
    return "*", entry


def _pattern(folder: str, source_conn_id: str) -> str:
    try:
        return folder if folder == "*" else lake_of(folder, source_conn_id, "setting")
    except ConfigurationError as error:
        raise ConfigurationError(error.message, where=VARIABLE, hint=error.hint) from error
