"""Declarations of the checks of a run's parameters, its target and Spark. Each source declares its own checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_cdc.core.checks import Check, Moment, Raised, problems_of
from airflow_provider_cdc.core.options.lake import CODECS
from airflow_provider_cdc.core.options.run import RunOptions
from airflow_provider_cdc.core.positions.facts import source_of
from airflow_provider_cdc.core.run.run import scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import check_fits, current, lake_of
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import LoginRefused, PreflightError, Problem, TerminalError, TransientError
from airflow_provider_cdc.hooks.catalog import lake_settings
from airflow_provider_cdc.operators.arguments.options import Allowed
from airflow_provider_cdc.operators.base import scratch_for
from airflow_provider_cdc.operators.planning.lake_checks import check_names
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.api.source import Source

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.base import Sink

C = TypeVar("C")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
    """The folder in which a run publishes, the URI of the folder that contains the folders of runs, and the sink."""

    lake: Storage
    scratch: str
    sink: Sink


@dataclass
class ParametersContext:
    """The parameters of a run.

    :param afterwards: closed together with this context. It then removes the folders that a run with ``plan_only``
        created.
    :param here: whether the Spark steps run on the same kind of worker as preflight. Otherwise preflight knows nothing
        about their machines.
    :param places: the places that the parameters name. None until the places are known to be writable.
    """

    options: RunOptions
    allowed: Allowed
    afterwards: ExitStack
    here: bool = True
    places: Places | None = field(default=None, init=False)


@dataclass(frozen=True)
class LakeContext:
    """The target, and the names of the copies that will be published there.

    :param to_past: whether the copies are exact at a point in the past. They may then be older than existing copies,
        and do not replace them.
    """

    lake: Storage
    sink: Sink
    source: Source
    conn_id: str
    tables: Sequence[TableName]
    to_past: bool = False


def collect(checks: Sequence[Check[C]], context: C, problems: list[Problem]) -> None:
    """Run those of the ``checks`` that belong to preflight, and add the problems that these checks find to
    ``problems``."""
    for check in checks:
        with collected(problems, ""):
            problems.extend(one for one in problems_of([check], Moment.PREFLIGHT, context) if one not in problems)


@contextmanager
def collected(problems: list[Problem], where: str) -> Iterator[None]:
    """Add the errors that the block raises to ``problems``, so that one run of preflight reports all problems.

    :raises TransientError: the block raised this error, and there are no earlier problems.
    :raises PreflightError: the block raised a `TransientError`, and there are earlier problems. The error has both.
    """
    try:
        yield
    except PreflightError as error:
        # Several checks may find the same problem.
        problems.extend(one for one in error.problems if one not in problems)
    except (TerminalError, LoginRefused) as error:
        problems.append(Problem(error.where or where, error.message, error.hint))
    except TransientError as error:
        # A retry may resolve this error, but not the problems that were already found.
        if problems:
            also = Problem(error.where or where, error.message, error.hint)
            raise PreflightError([*problems, also]) from None
        raise


def _errors_of(check: Callable[[C], object], where: str) -> Callable[[C], Iterable[Problem]]:
    """Return a check that calls ``check`` and reports the errors of this call as problems."""

    def ask(context: C) -> Iterable[Problem]:
        problems: list[Problem] = []
        with collected(problems, where):
            check(context)
        return problems

    return ask


def _allowed(context: ParametersContext) -> None:
    options = context.options
    steps = options.steps
    context.allowed.check(
        options.source_conn_id, options.target, options.scratch, steps.read_conn_ids or (), steps.log.conn_id
    )


def _target(context: ParametersContext) -> None:
    options = context.options
    lake = Storage(lake_of(options.target, options.source_conn_id))
    check_fits(current(), {"target": lake.uri, **({"scratch": options.scratch} if options.scratch else {})})
    _check_writable(lake, context)
    _log_conditional_writes(lake)
    sink = open_sink(lake_settings(options.steps.lake, options.source_conn_id), lake)
    context.places = Places(lake, scratch_of(lake.uri), sink)


def _codec(context: ParametersContext) -> Iterable[Problem]:
    import pyarrow as pa

    codec = context.options.steps.lake.compression
    if not pa.Codec.is_available(codec):
        available = ", ".join(one for one in CODECS if pa.Codec.is_available(one))
        what = f"PyArrow {pa.__version__} on this worker was built without the codec {codec}"
        yield Problem("parameter compression (Lake.compression)", what, f"choose one that it has: {available}")


def _log_conditional_writes(folder: Storage) -> None:
    if folder.filesystem.type_name in ("s3", "gcs", "abfs"):
        how = (
            "rejects conditional writes whose condition does not hold: they create the records of a run"
            if folder.has_conditional_writes
            else "has no conditional writes that can be used here: the tries of a task elect the writer of a record"
        )
        _log.info("The store of %s %s", folder, how)


def _scratch(context: ParametersContext) -> None:
    options = context.options
    # If the target is not writable, another check has already reported this problem.
    if context.places is not None and options.scratch:
        lake = context.places.lake
        scratch = scratch_for(options.scratch, options.source_conn_id, lake.uri)
        context.places = replace(context.places, scratch=scratch)
        _check_writable(Storage(context.places.scratch), context)


def _catalog(context: ParametersContext) -> None:
    if context.places is not None:
        context.places.sink.check_ready()


def _check_writable(folder: Storage, context: ParametersContext) -> None:
    if context.options.plan_only:
        context.afterwards.enter_context(leaving_no_folder(folder))
    folder.check_writable()


def _spark(context: ParametersContext) -> None:
    options = context.options
    check_spark(open_launcher(options.spark_conn_id, options.spark_conf or {}), here=context.here)
    if not context.here:
        _log.info("The Spark steps run on other workers than this task, so Java and Spark are not checked here")


def _cluster(context: ParametersContext) -> None:
    if context.here:
        open_launcher(context.options.spark_conn_id, {}).check_reachable()


def _names(context: LakeContext) -> None:
    check_names(context.lake, context.tables)
    context.sink.check_names(context.tables)


def _source(context: LakeContext) -> None:
    identity, position = context.source.here()
    source = source_of(context.source.kind, identity, context.conn_id)
    context.sink.check_source(context.tables, source, position)


def _rows(context: LakeContext) -> None:
    if not context.to_past:
        context.sink.check_rows(context.tables)


_WHEN = (Moment.PREFLIGHT,)

ALLOWED: tuple[Check[ParametersContext], ...] = (
    Check(
        "run.allowed",
        "The DAG's author allows the connection and the target. The run accesses no other connection and no other "
        "folder.",
        _WHEN,
        "use a connection and a target that the DAG's author allows, or ask the author to add yours to `Allow`",
        _errors_of(_allowed, "parameter target"),
        (Raised(Moment.POSITION_FIXED, "operators.lock_and_record:LockAndRecordOperator.execute"),),
    ),
)

PLACES: tuple[Check[ParametersContext], ...] = (
    Check(
        "target.writable",
        "The target is writable.",
        _WHEN,
        "correct `target`, or grant Airflow's account write access to this folder",
        _errors_of(_target, "parameter target"),
    ),
    Check(
        "target.codec",
        "PyArrow on the worker has the codec of the files.",
        _WHEN,
        "choose another `Lake.compression`, or install a PyArrow that has this codec, also on Spark's machines",
        _codec,
    ),
    Check(
        "target.scratch",
        "The scratch folder is writable.",
        _WHEN,
        "correct `Lake.scratch`, or grant Airflow's account write access to this folder",
        _errors_of(_scratch, "parameter scratch (Lake.scratch)"),
    ),
    Check(
        "target.catalog",
        "The catalog of the tables can be reached.",
        _WHEN,
        "correct `Iceberg.catalog_conn_id`. To test the connection, use its Test button, which creates and drops "
        "a namespace",
        _errors_of(_catalog, "parameter catalog_conn_id (Iceberg.catalog_conn_id)"),
    ),
    Check(
        "run.spark",
        "Spark can start in client mode: the connection, the properties, and Java, Spark and the names of hosts on the "
        "worker.",
        _WHEN,
        "correct `spark_conn_id`, the properties in `Spark.conf`, or the worker, as the message says",
        _errors_of(_spark, "parameter spark_conn_id"),
        (Raised(Moment.EACH_STEP, "operators.spark.launchers.registry:check_spark"),),
    ),
)

CLUSTER: tuple[Check[ParametersContext], ...] = (
    Check(
        "run.spark-master",
        "The master of a standalone cluster, or the API server of Kubernetes, accepts connections.",
        _WHEN,
        "start the cluster, or correct the host and the port of the connection",
        _errors_of(_cluster, "parameter spark_conn_id"),
    ),
)
"""Checks that a retry may pass. They come last, because their errors end preflight."""

LAKE: tuple[Check[LakeContext], ...] = (
    Check(
        "target.names",
        "Each table has its own folder, even if the store ignores case, and its own Iceberg table.",
        _WHEN,
        "copy the tables into different targets, use a case-sensitive store, or change `Iceberg.table_name`",
        _errors_of(_names, "parameter target"),
    ),
    Check(
        "target.source",
        "The existing copies in the target are copies of the same source.",
        _WHEN,
        "use another target, or the connection from which the existing copies were made",
        _errors_of(_source, "parameter target"),
        (Raised(Moment.BEFORE_COMMIT, "jobs.consolidate.step:_consolidate"),),
    ),
    Check(
        "target.rows",
        "No other program changed rows of the Iceberg tables since the last copies.",
        _WHEN,
        "set the table back to the snapshot of the last run, or choose On.foreign_commit = replace",
        _errors_of(_rows, "parameter target"),
        (Raised(Moment.BEFORE_COMMIT, "sinks.iceberg.commit:check_foreign"),),
    ),
)

PARTS_OF_THE_PLAN: tuple[Check[None], ...] = (
    Check(
        "target.storage",
        "The connection to the object store can be used, and is for the store of the target or of the scratch folder.",
        (),
        "correct Lake.storage_conn_id as the message says",
        raised_by=(
            Raised(Moment.PREFLIGHT, "core.storage.uri:check_fits"),
            Raised(Moment.EACH_STEP, "hooks.storage:storage_settings"),
        ),
    ),
    Check(
        "run.conf",
        "Each key of a DAG run's conf is a param of the DAG.",
        (),
        "correct the key; the message lists the params",
        raised_by=(Raised(Moment.PREFLIGHT, "operators.arguments.options:check_conf"),),
    ),
    Check(
        "run.options",
        "Each option has a valid value.",
        (),
        "correct the value as the message says",
        raised_by=(Raised(Moment.PREFLIGHT, "core.options.run:checked"),),
    ),
    Check(
        "run.kind",
        "This kind of source supports all options that are set.",
        (),
        "leave the option at its default",
        raised_by=(Raised(Moment.PREFLIGHT, "operators.arguments.options:check_kind"),),
    ),
    Check(
        "run.parts",
        "The conditions and columns (where, columns) belong to tables that are copied, and mean the same in a SELECT "
        "and in the log.",
        (),
        "correct `Table.where` and `Table.columns` as the message says",
        raised_by=(
            Raised(Moment.PREFLIGHT, "sources.planning.selections:select"),
            Raised(Moment.EACH_STEP, "sources.planning.selections:check_still"),
        ),
    ),
    Check(
        "run.merge",
        "The shards of a merged table have the same columns and the same key, and no shard of its latest copy is "
        "missing.",
        (),
        "correct the `Merge`, or the tables, as the message says",
        raised_by=(
            Raised(Moment.PREFLIGHT, "sources.planning.shards:with_shards"),
            Raised(Moment.PREFLIGHT, "sources.planning.shards:without_vanished"),
            Raised(Moment.POSITION_FIXED, "jobs.begin.initial_position:with_shards"),
        ),
    ),
    Check(
        "run.collisions",
        "No key is in several shards of a merged table at the run's position, unless the origin is part of its key.",
        (),
        "remove the rows from all but one of the shards, or set `Merge.origin_columns`, and `On.collision` = "
        "`origin_in_key`",
        raised_by=(Raised(Moment.BEFORE_COMMIT, "jobs.shards.collisions:check_collisions"),),
    ),
    Check(
        "run.layouts",
        "The options Table.partition_by and Table.sort_by belong to tables that are copied to Iceberg, and name "
        "columns, or "
        "transforms of columns.",
        (),
        "correct Table.partition_by and Table.sort_by as the message says",
        raised_by=(
            Raised(Moment.PREFLIGHT, "sources.planning.survey:layouts"),
            Raised(Moment.POSITION_FIXED, "sinks.iceberg.layout:check_columns"),
            Raised(Moment.POSITION_FIXED, "sinks.iceberg.layout:check_partitioning"),
        ),
    ),
    Check(
        "run.base",
        "A copy is rolled forward only if it is complete. Its history, its part of the table and its published types "
        "must be the same as those of the run.",
        (),
        "set `refresh` to `full`, so that the run reads the table in full",
        raised_by=(
            Raised(Moment.PREFLIGHT, "jobs.begin.base_selection:choose"),
            Raised(Moment.POSITION_FIXED, "jobs.begin.base_selection:bases_of"),
        ),
    ),
    Check(
        "run.as-of",
        "The source can be copied as of the position in the option `as_of`.",
        (),
        "set `as_of` to a later position, or leave `as_of` empty",
        raised_by=(Raised(Moment.PREFLIGHT, "sources.planning.point:check_point"),),
    ),
    Check(
        "run.made-once",
        "A run that has published copies is not started again under the same name.",
        (),
        "trigger a new run",
        raised_by=(
            Raised(Moment.POSITION_FIXED, "operators.planning.lake_checks:check_not_made_before"),
            Raised(Moment.POSITION_FIXED, "operators.planning.lake_checks:check_not_of_a_deleted_dag_run"),
        ),
    ),
)
"""Checks that are part of planning and starting a run."""

CHECKS: tuple[Check[Any], ...] = (*ALLOWED, *PLACES, *CLUSTER, *LAKE, *PARTS_OF_THE_PLAN)


@contextmanager
def leaving_no_folder(target: Storage) -> Iterator[None]:
    """Remove the empty folders of ``target`` that were created inside the block.

    Only local disks can have empty folders.
    """
    from pyarrow import fs

    created_folders: list[Path] = []
    if isinstance(target.filesystem, fs.LocalFileSystem):
        path = Path(target.path())
        created_folders = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in created_folders:
            with suppress(OSError):
                folder.rmdir()
