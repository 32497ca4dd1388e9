"""Finds the files of runs in a table's folder that no snapshot of the table names.

Examples are the data files of a failed run, the manifests of an attempt whose commit was rejected, and the file without
rows of an empty table. The name of such a file contains the id of its run. Files with other names are never listed.
"""

from __future__ import annotations

import re

from pyiceberg.table import Table

from airflow_provider_cdc.core.storage.listing import entries
from airflow_provider_cdc.sinks.base import StrayFile
from airflow_provider_cdc.sinks.iceberg.catalog import folder_of
from airflow_provider_cdc.sinks.iceberg.files.named_files import NamedFiles
from airflow_provider_cdc.sinks.iceberg.tables.table import DATA, METADATA

_RUN = r"(?P<run>\d{8}T\d{6}Z-[0-9a-f]{8})"
_NAMES = {
    # `core.run.table_files` and `core.run.staging` name data files, `sinks.iceberg.files.producer` names metadata
    # files.
    DATA: re.compile(rf"part-[0-9a-z-]+-{_RUN}-[0-9a-f]{{16}}[-0-9p]*\.parquet"),
    METADATA: re.compile(rf"(?:snap-\d+-\d+-)?cdc-{_RUN}-[0-9a-f]{{32}}[-0-9a-z]*\.avro"),
}


def stray_files(table: Table) -> list[StrayFile]:
    """Return the files of runs in the folder of ``table`` that no snapshot names.

    :param table: the table in its present state. Files that a later commit names may be in the result.
    """
    folder = folder_of(table)
    files = [
        StrayFile(file.name, folder.uri_of(file.name), file.bytes, file.written, match["run"])
        for name, pattern in _NAMES.items()
        for file in entries(folder, name)
        if (match := pattern.fullmatch(file.name.rpartition("/")[2])) is not None
    ]
    named = NamedFiles().of(table, table.metadata.snapshots) if files else set()
    return [file for file in files if file.name not in named]
