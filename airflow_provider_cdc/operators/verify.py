"""A task that verifies copies: against the source, against their records, or with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.errors import CopyDiffers, ManifestError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.catalog import lake_settings
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    FOLDER,
    MARKDOWN,
    NOT_VERIFIED,
    RANGES,
    REQUEST,
    RESULT,
    SOURCE,
    VerifyRequest,
    VerifyResult,
    request_of,
)
from airflow_provider_cdc.operators.arguments.types import SparkArguments
from airflow_provider_cdc.operators.base import push_xcoms, run_id_of
from airflow_provider_cdc.operators.spark.step import SparkStepOperator
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings

if TYPE_CHECKING:
    from airflow.sdk import Context


class VerifyOperator(SparkStepOperator):
    """Verify copies, and fail if a row differs.

    XComs: ``result_uri`` is the folder with ``result.json`` and ``result.md``. ``outcomes`` has ``same``, ``different``
    or ``not verified`` for each table.

    :param source_conn_id: connection to the source.
    :param target: URI of the folder in which the copies were published, as for the run. The result is written to
        ``_verify`` in this folder.
    :param tables: the tables whose latest copies in the target are verified.
    :param copies: other copies to verify, by table: a URI (a Parquet or CSV file, a folder of Parquet files, or
        ``iceberg:namespace.table``), or an object with ``uri``, ``columns`` (column at the source to column of the
        copy), ``where`` and ``selected`` (the copied part), and ``key``.
    :param what: ``source``: compare rows with the source. ``files``: compare files with the record of the copy.
        ``copies``: compare copies with ``others``.
    :param others: with ``copies``, the other copy of each table, in the same form as ``copies``.
    :param at: the time or position at which the copies are exact. Empty: the position in the record of the copy.
    :param since: a time or position after which the copies were made, if their position is unknown. Keys that changed
        since then are not verified.
    :param lag_seconds: for copies that follow the source: how far they may be behind it. The task waits for this time.
        Keys that change meanwhile are not verified.
    :param ranges: the number of key ranges in the sample of a table; 0: all rows.
    :param range_rows: approximate number of rows of a range.
    :param seed: chooses the ranges. Give the date, for another sample on each day: ``{{ ds_nodash }}``.
    :param shown: the greatest number of differing keys that are named for a table.
    :param standing_slot: the standing slot of the runs. PostgreSQL needs it, except with ``lag_seconds``.
    :param unrepresentable: as in the run. It is taken from the record of the run if this record still exists.
    :param arrays: as in the run. It is taken from the record of the run if this record still exists.
    :param format: as in the run.
    :param catalog_conn_id: as in the run.
    :param table_name: as in the run.
    :param scratch: as in the run.
    :param not_verified: ``fail``: the task also fails if a table could not be verified. ``warn``: it only logs this.
    :param spark_conn_id: connection to Spark.
    :param conf: Spark properties.
    :param storage_conn_id: connection to the object store.
    """

    step = "verify"
    template_fields: Sequence[str] = (
        *("source_conn_id", "target", "tables", "copies", "others", "what", "at", "since", "lag_seconds", "ranges"),
        *("range_rows", "seed", "shown", "standing_slot", "scratch", "spark_conn_id", "conf", "storage_conn_id"),
    )

    def __init__(
        self,
        *,
        source_conn_id: str,
        target: str,
        tables: Sequence[str] | str = (),
        copies: Mapping[str, Any] | str | None = None,
        what: str = SOURCE,
        others: Mapping[str, Any] | str | None = None,
        at: str = "",
        since: str = "",
        lag_seconds: int | str | None = None,
        ranges: int | str = RANGES,
        range_rows: int | str = 20_000,
        seed: int | str = 0,
        shown: int | str = 100,
        standing_slot: str = "",
        unrepresentable: str = "error",
        arrays: str = "text",
        format: str = "parquet",
        catalog_conn_id: str = "",
        table_name: str = "{schema}.{table}",
        scratch: str = "",
        not_verified: str = "fail",
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, object] | str | None = None,
        storage_conn_id: str = "",
        **kwargs: Unpack[SparkArguments],
    ) -> None:
        super().__init__(
            source_conn_id=source_conn_id,
            run_uri="",
            spark_conn_id=spark_conn_id,
            conf=conf,
            storage_conn_id=storage_conn_id,
            **kwargs,
        )
        self.target = target
        self.tables: Any = tables
        self.copies: Any = copies
        self.what = what
        self.others: Any = others
        self.at = at
        self.since = since
        self.lag_seconds = lag_seconds
        self.ranges = ranges
        self.range_rows = range_rows
        self.seed = seed
        self.shown = shown
        self.standing_slot = standing_slot
        self.unrepresentable = unrepresentable
        self.arrays = arrays
        self.format = format
        self.catalog_conn_id = catalog_conn_id
        self.table_name = table_name
        self.scratch = scratch
        self.not_verified = not_verified

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        folder, request = self.own_run(context), self._request(context)
        if self._resumed is None:
            records.write(folder, REQUEST, request)
            folder.delete_file(RESULT)
        launcher = self.open_launcher(context)
        read_settings = open_hook(self.source_conn_id).settings
        catalog = lake_settings(request.lake, self.source_conn_id).catalog
        self.run_app(launcher, context, folder, read_settings, catalog)
        if not folder.exists(RESULT):
            raise ManifestError(
                "the Spark app ended without an error, but there is no result",
                where=folder.uri,
                hint="check that the Spark driver and this task use the same storage",
            )
        result = records.read(VerifyResult, folder, RESULT)
        self.report_uri = folder.uri_of(MARKDOWN)
        self.log.info("Result: %s", self.report_uri)
        outputs = {"result_uri": folder.uri, "outcomes": {one.table: one.outcome for one in result.tables}}
        push_xcoms(context, outputs)
        self._judge(result)
        return outputs

    def _judge(self, result: VerifyResult) -> None:
        faults = result.of(DIFFERENT)
        if unverified := result.of(NOT_VERIFIED):
            self.log.warning("Not verified: %s", ", ".join(one.table for one in unverified))
            faults += unverified if self.not_verified == "fail" else []
        if faults:
            raise CopyDiffers(
                "; ".join(f"{one.table}: {one.outcome}: {one.why}" for one in faults),
                where=self.report_uri,
                hint="the result names the differing keys with both rows",
            )

    def _request(self, context: Context) -> VerifyRequest:
        lake = lake_of(self.target, self.source_conn_id)
        return request_of(
            run_id_of(context, lake),
            what=self.what,
            tables=[self.tables] if isinstance(self.tables, str) else self.tables,
            copies=self.copies or None,
            others=self.others or None,
            target=lake,
            scratch=self.scratch,
            source_conn_id=self.source_conn_id,
            at=self.at,
            since=self.since,
            lag_seconds=self.lag_seconds,
            ranges=self.ranges,
            range_rows=self.range_rows,
            seed=self.seed,
            shown=self.shown,
            standing_slot=self.standing_slot,
            unrepresentable=self.unrepresentable,
            arrays=self.arrays,
            format=self.format,
            catalog_conn_id=self.catalog_conn_id,
            table_name=self.table_name,
        )

    def own_run(self, context: Context) -> Storage:
        """Return the folder of this verification. All tries of the task have the same folder."""
        lake = lake_of(self.target, self.source_conn_id)
        return Storage(lake).folder(FOLDER, run_id_of(context, lake))

    def release(self, run: Storage, settings: ConnectionSettings) -> None:
        """Remove what the throw-away runs of this verification left: on the server, and their folders, which have rows
        of the source. Errors are only logged."""
        try:
            request = records.read(VerifyRequest, run, REQUEST)
            for run_id in request.run_ids:
                run.delete_folder(run_id)
            source = open_source(settings)
            for run_id in request.run_ids:
                source.release(run_id)
        except Exception as error:
            self.log.warning("Could not remove what the verification %s left: %s", run.uri, error)
