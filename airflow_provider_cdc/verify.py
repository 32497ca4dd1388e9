"""A command that verifies copies, with Spark on this machine: ``python -m airflow_provider_cdc.verify --help``.

The exit status is 0 if no row differs, 3 if a row differs, and 4 if a table could not be verified. It is 1 if a retry
may help, and 2 if the command cannot work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_cdc.core.options.lake import FORMATS
from airflow_provider_cdc.core.options.run import UNREPRESENTABLE
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import install, lake_of
from airflow_provider_cdc.errors import CdcError, ConfigurationError, TerminalError
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    FOLDER,
    MARKDOWN,
    NOT_VERIFIED,
    RANGES,
    REQUEST,
    RESULT,
    WHAT,
    VerifyRequest,
    VerifyResult,
    request_of,
)

SAME, TRANSIENT, TERMINAL, DIFFERS, UNVERIFIED = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify copies as the arguments say, and return the exit status."""
    # Tables may stand before and after options.
    given = _parser().parse_intermixed_args(arguments)
    try:
        result = _verified(given)
    except CdcError as error:
        print(f"verify failed: {type(error).__name__}: {error}", file=sys.stderr)
        return TERMINAL if isinstance(error, TerminalError) else TRANSIENT
    if result.of(DIFFERENT):
        return DIFFERS
    return UNVERIFIED if result.of(NOT_VERIFIED) else SAME


def _verified(given: argparse.Namespace) -> VerifyResult:
    # Spark and Airflow are imported late, because they are slow to import, and `--help` needs neither.
    from airflow_provider_cdc.hooks import open_hook
    from airflow_provider_cdc.hooks.catalog import lake_settings
    from airflow_provider_cdc.hooks.storage import storage_settings
    from airflow_provider_cdc.jobs.runtime.driver import driver_jvm, to_environment
    from airflow_provider_cdc.operators.spark.launchers.client.launcher import scratch

    try:
        from airflow_provider_cdc.jobs.runtime.session import open_session
        from airflow_provider_cdc.jobs.verify.step import verify
    except ImportError as error:
        hint = "pip install 'airflow-provider-cdc[spark]'"
        raise ConfigurationError(f"PySpark is not installed: {error}", hint=hint) from None
    install(storage_settings(given.storage_conn_id))
    request = _request(given)
    settings = open_hook(given.source_conn_id).settings() if given.source_conn_id else None
    if request.lake.catalog_conn_id:
        if settings is None:
            raise ConfigurationError("it is needed with --catalog-conn-id", where="--source-conn-id")
        os.environ.update(to_environment(settings, lake_settings(request.lake, given.source_conn_id).catalog))
    os.environ.update(driver_jvm())
    # If this process is killed, a later command or task on this machine removes the temporary folder.
    with scratch(Path(tempfile.gettempdir())) as temporary:
        place = Storage(request.target) if request.target else Storage(temporary.as_uri())
        folder = place.folder(FOLDER, request.id)
        records.write(folder, REQUEST, request)
        spark = open_session("cdc verify")
        try:
            result = verify(spark, folder, settings, with_rows=True)
        finally:
            spark.stop()
        for name, file in ((RESULT, given.json), (MARKDOWN, given.markdown)):
            if file:
                with folder.filesystem.open_input_stream(folder.path(name)) as stream:
                    Path(file).write_bytes(stream.read())
        if request.target:
            print(f"verify: the result is in {folder.uri}")
    return result


def _request(given: argparse.Namespace) -> VerifyRequest:
    now = datetime.now(UTC)
    return request_of(
        f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}",
        what=given.what,
        tables=given.tables,
        copies=_copies(given.copy),
        others=_copies(given.other),
        target=lake_of(given.target, given.source_conn_id) if given.target else "",
        scratch=given.scratch,
        source_conn_id=given.source_conn_id,
        at=given.at,
        since=given.since,
        lag_seconds=given.lag_seconds,
        ranges=0 if given.all else given.ranges,
        range_rows=given.range_rows,
        seed=given.seed,
        shown=given.shown,
        standing_slot=given.standing_slot,
        unrepresentable=given.unrepresentable,
        arrays=given.arrays,
        format=given.format,
        catalog_conn_id=given.catalog_conn_id,
        table_name=given.table_name,
    )


def _copies(given: Sequence[str]) -> dict[str, Any]:
    """Return the copies that the arguments of the form ``TABLE=URI`` or ``TABLE={...}`` name."""
    copies: dict[str, Any] = {}
    for text in given:
        table, equals, uri = text.partition("=")
        if not equals:
            raise ConfigurationError(f"{text!r} does not have the form TABLE=URI", where="--copy or --other")
        try:
            copies[table] = json.loads(uri) if uri.startswith("{") else uri
        except ValueError as error:
            raise ConfigurationError(f"{uri!r} is not a JSON object: {error}", where="--copy or --other") from None
    return copies


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_cdc.verify", description=__doc__)
    add = parser.add_argument
    add("what", choices=WHAT, help="compare copies with the source, files with their records, or copies with copies")
    add("tables", nargs="*", metavar="TABLE", help="a table whose latest copy in the target is verified")
    add("--target", default="", help="the folder in which the copies were published")
    add("--source-conn-id", default="", help="the Airflow connection to the source (also AIRFLOW_CONN_…)")
    add("--copy", action="append", default=[], metavar="TABLE=URI", help="another copy to verify; may be repeated")
    add("--other", action="append", default=[], metavar="TABLE=URI", help="with copies: the copy to compare with")
    add("--at", default="", help="the time or position at which the copies are exact")
    add("--since", default="", help="a time or position after which the copies were made")
    add("--lag-seconds", help="for copies that follow the source: how far they may be behind it")
    add("--all", action="store_true", help="compare all rows instead of a sample")
    add("--ranges", type=int, default=RANGES, help="the number of key ranges in a sample (default: %(default)s)")
    add("--range-rows", type=int, default=20_000, help="rows of a range, about (default: %(default)s)")
    add("--seed", type=int, default=0, help="chooses the ranges (default: %(default)s)")
    add("--shown", type=int, default=100, help="differing keys to name for a table (default: %(default)s)")
    add("--standing-slot", default="", help="PostgreSQL: the standing slot of the runs")
    add("--unrepresentable", choices=UNREPRESENTABLE, default="error", help="as in the run")
    add("--arrays", choices=("text", "list"), default="text", help="as in the run")
    add("--format", choices=FORMATS, default=FORMATS[0], help="the format of the copies in the target")
    add("--catalog-conn-id", default="", help="the connection to the catalog of Iceberg tables")
    add("--table-name", default="{schema}.{table}", help="as in the run")
    add("--scratch", default="", help="as in the run")
    add("--storage-conn-id", default="", help="the connection to the object store")
    add("--json", default="", metavar="FILE", help="write the result to this file, as JSON")
    add("--markdown", default="", metavar="FILE", help="write the result to this file, as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
