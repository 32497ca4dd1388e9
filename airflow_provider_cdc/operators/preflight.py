"""The first step: everything that can be known to fail fails here, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.head import source_of
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.errors import PreflightError, Problem, TerminalError, TransientError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.operators.base import TargetOperator, airflow_errors, lake_of
from airflow_provider_cdc.operators.lake_checks import check_names, tell_leftovers
from airflow_provider_cdc.operators.parameters import Allowed, RunParameters, check_conf
from airflow_provider_cdc.operators.spark_step import check_spark
from airflow_provider_cdc.sources.base import Source, TablePlan

if TYPE_CHECKING:
    from airflow.sdk import Context


class PreflightOperator(TargetOperator):
    """Check the parameters, the target, Spark and the source, and decide how each table is read.

    XComs: ``plan``, a list with one object per table (``table``, ``consistency``, ``reason``, estimated ``rows`` and
    ``bytes``), and ``options``, the checked settings that ``lock_and_record`` writes into the manifest.

    :param source_conn_id: connection to the source, of type ``cdc_mysql``, ``cdc_postgres``, ``mysql`` or ``postgres``.
    :param tables: the tables as ``schema.table``; ``*`` matches any run of characters in either part, and a pattern
        that begins with ``!`` leaves out what those before it named (``!shop._*_gho``).
    :param target: URI of the folder to publish in; ``{source}`` in it stands for ``source_conn_id``.
    :param consistency: ``auto``, ``watermark``, ``lock`` or ``exported``.
    :param unrepresentable: what becomes of values that no Arrow type holds (a zero date, a DECIMAL of 65 digits):
        ``error`` stops, ``null`` publishes null and counts them, ``string`` publishes such columns as text.
    :param spark_conn_id: connection to Spark.
    :param conf: Spark properties of the later steps.
    :param chunk_rows: rows that one statement reads, about.
    :param chunk_pause: seconds that a reader rests after each chunk, to spare the source.
    :param lock_wait_seconds: seconds that one try to take a lock may keep others waiting.
    :param lock_tries: how often a lock is tried.
    :param lock_pause_seconds: seconds between two tries.
    :param lock_through_read: keep the lock until the table is read, for servers whose read views need that.
    :param slot_wait_seconds: PostgreSQL: how long the slot may wait for transactions that write; nobody waits for it.
    :param keep_slot: PostgreSQL: leave the publication and the slot there when the run is published, to stream on from
        ``initial_lsn``. Whoever asks for it has to drop them.
    :param source_conn_ids: the connections that may be named, ``*`` for any run of characters; None: any.
    :param targets: the folders that, or below which, may be published in; see `Allowed`; None: any.
    :param strict_conf: refuse a DAG run whose conf has keys that are no params of the DAG.
    """

    template_fields: Sequence[str] = (
        "source_conn_id",
        "tables",
        "target",
        "consistency",
        "unrepresentable",
        "spark_conn_id",
        "conf",
        "chunk_rows",
        "chunk_pause",
        "lock_wait_seconds",
        "lock_tries",
        "lock_pause_seconds",
        "lock_through_read",
        "slot_wait_seconds",
        "keep_slot",
    )

    def __init__(
        self,
        *,
        source_conn_id: str,
        tables: Sequence[str] | str,
        target: str,
        consistency: str = "auto",
        unrepresentable: str = "error",
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, Any] | str | None = None,
        chunk_rows: int | str = 100_000,
        chunk_pause: float | str = 0.0,
        lock_wait_seconds: int | str = 5,
        lock_tries: int | str = 12,
        lock_pause_seconds: float | str = 2.0,
        lock_through_read: bool | str = False,
        slot_wait_seconds: int | str = 600,
        keep_slot: bool | str = False,
        source_conn_ids: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        strict_conf: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        # Params keep their types, whatever the DAG's own setting is.
        self.render_template_as_native_obj = True
        self.source_conn_id = source_conn_id
        self.tables = tables
        self.target = target
        self.consistency = consistency
        self.unrepresentable = unrepresentable
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.chunk_rows = chunk_rows
        self.chunk_pause = chunk_pause
        self.lock_wait_seconds = lock_wait_seconds
        self.lock_tries = lock_tries
        self.lock_pause_seconds = lock_pause_seconds
        self.lock_through_read = lock_through_read
        self.slot_wait_seconds = slot_wait_seconds
        self.keep_slot = keep_slot
        # No templates: whoever triggers a run could fill them.
        self.allowed = Allowed(source_conn_ids, targets)
        self.strict_conf = strict_conf

    def execute(self, context: Context) -> dict[str, Any]:
        plans: list[TablePlan] = []
        problems: list[Problem] = []
        lake: Storage | None = None
        with airflow_errors():
            if self.strict_conf:
                check_conf(context["dag_run"].conf, {*context["dag"].params, *self.params})
            parameters = RunParameters.check({name: getattr(self, name) for name in self.template_fields})
            with _collected(problems, "parameter target"):
                self.allowed.check(parameters.source_conn_id, parameters.target)
            if problems:
                # What is not allowed is not touched.
                raise PreflightError(problems)
            with _collected(problems, "parameter target"):
                target = Storage(lake_of(parameters.target, parameters.source_conn_id))
                target.check_writable()
                # Nothing more is tried on one that cannot be written to.
                lake = target
            with _collected(problems, "parameter spark_conn_id"):
                check_spark(parameters.spark_conn_id, parameters.conf)
            with _collected(problems, "parameter source_conn_id"):
                source = open_hook(parameters.source_conn_id).get_conn()
                plans = source.preflight(parameters.tables, parameters.consistency, parameters.unrepresentable)
            if lake is not None and plans:
                with _collected(problems, "parameter target"):
                    _check_lake(lake, source, parameters.source_conn_id, [plan.name for plan in plans])
            if problems:
                raise PreflightError(problems)
        if lake is not None:
            tell_leftovers(lake)
        self.log.info("%d tables will be copied:\n%s", len(plans), _readable(plans))
        return {"plan": [plan.to_json() for plan in plans], "options": parameters.options()}


def _check_lake(lake: Storage, source: Source, conn_id: str, tables: Sequence[TableName]) -> None:
    # Writes Parquet too, which takes a while to import, and a DAG's file is parsed again and again.
    from airflow_provider_cdc.sinks.parquet import ParquetSink

    check_names(lake, tables)
    identity, position = source.here()
    ParquetSink(lake).check_source(tables, source_of(source.kind, identity, conn_id), position)


@contextmanager
def _collected(problems: list[Problem], where: str) -> Iterator[None]:
    """Add what goes wrong to ``problems``: who fixes one should not meet the next only on the next try."""
    try:
        yield
    except PreflightError as error:
        problems.extend(error.problems)
    except TerminalError as error:
        problems.append(Problem(error.where or where, error.message, error.hint))
    except TransientError:
        # Waiting helps against this one, but not against what was found before.
        if problems:
            raise PreflightError(problems) from None
        raise


def _readable(plans: Sequence[TablePlan]) -> str:
    rows = [
        ("table", "consistency", "rows, about", "MB", "because"),
        *(
            (str(plan.name), plan.consistency, f"{plan.rows:,}", f"{plan.bytes / 1e6:,.1f}", plan.reason)
            for plan in plans
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}"
        for row in rows
    )
