"""Removes what ended runs left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow_provider_cdc.core.liveness import StateOf, no_airflow
from airflow_provider_cdc.core.options.declare import declared_in, made_of
from airflow_provider_cdc.core.options.lake import CleanOptions
from airflow_provider_cdc.core.options.run import LogOptions, StepOptions
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.hooks import open_source_with_replicas
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.operators.arguments.options import Allowed
from airflow_provider_cdc.operators.arguments.types import TaskArguments
from airflow_provider_cdc.operators.base import TargetOperator, push_xcoms, same_run, scratch_for
from airflow_provider_cdc.operators.planning.dag_run_state import state_in
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.sources.api.source import KeptObject

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.cleaning.cleaner import Cleaner

_MOST_MAPPED = 1_000


class CleanOperator(TargetOperator):
    """Remove what ended runs left behind for one target: the folders of runs that were never published, copies that a
    run did not place completely, files of Iceberg tables that no snapshot names, replication slots and publications.

    Something is removed only if it is proven that its run has ended. Everything else is listed with the reason why it
    stays::

        CleanOperator(task_id="clean", source_conn_id="cdc_mysql", target="s3://bucket/lake", dry_run=True)

    XComs:

    - ``removed``: a list with one object for each leftover that was removed (``kind``, ``what``, ``run_id``, ``bytes``,
      ``why``). With ``dry_run``: that would be removed.
    - ``kept``: the same for leftovers that stay.
    - ``bytes``: the size of the removed files.

    :param source_conn_id: connection to the source, as the runs have it.
    :param target: the target of the runs. ``{source}`` in the URI stands for ``source_conn_id``.
    :param scratch: the ``scratch`` of the runs. Empty: ``_runs`` in the target.
    :param storage_conn_id: connection to the object store, as the runs have it.
    :param log_conn_id: PostgreSQL: connection to the standby from which the runs read the log (`Read.log_conn_id`).
    :param days: days for which the files of a failed DAG run stay after the last write, because its tasks may still be
        cleared. If Airflow does not know the DAG run, its files stay for at least 7 days.
    :param dry_run: remove nothing.
    :param source_conn_ids: the allowed connections, as for `PreflightOperator`.
    :param targets: the allowed targets, as for `PreflightOperator`.
    """

    template_fields: Sequence[str] = (
        *("source_conn_id", "log_conn_id", "target", "scratch", "storage_conn_id", "days", "dry_run"),
    )

    def __init__(
        self,
        *,
        source_conn_id: str,
        target: str,
        scratch: str = "",
        storage_conn_id: str = "",
        log_conn_id: str = "",
        days: int | str = 7,
        dry_run: bool | str = False,
        source_conn_ids: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(do_xcom_push=False, **kwargs)
        # Params must keep their types, even if the DAG renders templates to text.
        self.render_template_as_native_obj = True
        self.source_conn_id = source_conn_id
        self.target = target
        self.scratch = scratch
        self.storage_conn_id = storage_conn_id
        self.log_conn_id = log_conn_id
        self.days: Any = days
        # Airflow's operators have a method of this name, which only ``airflow tasks test --dry-run`` calls.
        self.dry_run: Any = dry_run
        self.allowed = Allowed(source_conn_ids, targets)

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        options = checked_clean({name: getattr(self, name) for name in self.template_fields})
        self.allowed.check(options.source_conn_id, options.target, options.scratch, log_conn_id=options.log_conn_id)
        report = cleaner_of(options, state_in(context["ti"])).clean(dry_run=options.dry_run)
        self.log.info("%s", "\n".join(report.lines()))
        outputs = report.data()
        push_xcoms(context, {name: outputs[name] for name in ("removed", "kept", "bytes")})
        return outputs


def checked_clean(values: Mapping[str, Any]) -> CleanOptions:
    """Check the options of a clean-up, and return them.

    :raises PreflightError: names every option whose value is not accepted.
    """
    options = list(declared_in(CleanOptions))
    problems = [problem for one in options if (problem := one.check(values[one.argument])) is not None]
    if problems:
        raise PreflightError(problems)
    checked: CleanOptions = made_of(
        CleanOptions, {one.name: one.accepts.plain(values[one.argument]) for one in options}
    )
    return checked


def cleaner_of(options: CleanOptions, state_of: StateOf = no_airflow) -> Cleaner:
    """Return the cleaner of a target. The storage must be accessible (`hooks.storage.storage_access`).

    :param state_of: asks Airflow for the state of a DAG run.
    """
    # These modules are imported only here, because they are slow to import and Airflow parses DAGs often.
    from airflow_provider_cdc.cleaning.cleaner import Cleaner
    from airflow_provider_cdc.core.storage.folder import Storage
    from airflow_provider_cdc.hooks.catalog import lake_settings
    from airflow_provider_cdc.sinks.registry import open_sink

    lake = lake_of(options.target, options.source_conn_id)
    return Cleaner(
        Storage(lake),
        Storage(scratch_for(options.scratch, options.source_conn_id, lake)),
        open_source_with_replicas(options.source_conn_id, StepOptions(log=LogOptions(conn_id=options.log_conn_id))),
        options.source_conn_id,
        lambda manifest: open_sink(
            lake_settings(manifest.options.lake, manifest.source_conn_id), Storage(manifest.lake)
        ),
        state_of,
        _is_of(Storage(lake).uri),
        options.days,
    )


def _is_of(lake: str) -> Callable[[KeptObject], bool]:
    def is_of(one: KeptObject) -> bool:
        names = one.run_id, one.dag_id, one.dag_run_id, one.task_id, lake
        return any(same_run(*names, index) for index in (None, *range(_MOST_MAPPED)))

    return is_of
