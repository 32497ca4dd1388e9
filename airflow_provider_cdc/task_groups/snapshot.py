"""The task group that copies a set of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any, Self, Unpack

from airflow.providers.common.compat.sdk import AssetAlias, TaskGroup, XComArg

from airflow_provider_cdc.assets import copies_alias, outlets_of
from airflow_provider_cdc.compat import runs_dag_code
from airflow_provider_cdc.core.options.arguments import SourceArguments, declared, options_by_name, places
from airflow_provider_cdc.core.options.copied import Lake, Merge, Table
from airflow_provider_cdc.core.options.declare import check_names
from airflow_provider_cdc.core.options.flat import with_tables
from airflow_provider_cdc.core.options.running import Allow
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.arguments.options import Given, accepting_options, take_options
from airflow_provider_cdc.operators.arguments.types import GroupArguments, PartialArguments
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.preflight import PreflightOperator
from airflow_provider_cdc.operators.release import ReleaseOfRun
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.task_groups.mapping import PartialGroup

# Releases what a run holds on its source when the DAG run ends.


def release_when_the_run_ends(dag: Any, lock_and_record: LockAndRecordOperator) -> None:
    """Add callbacks to ``dag`` that release the run of ``lock_and_record``.

    Both callbacks are needed, because a DAG run may succeed even if the group of the run did not succeed. For
    example, a user may set the states of the group's tasks, or a later task may run even after a failure of the
    group. Airflow calls a DAG's callbacks in its DAG processor. `dag.test` calls the callbacks in the process of the
    tasks, and raises an error if a param has no default. The callbacks are useless in `dag.test`, because they would
    be killed together with the tasks.
    """
    if not runs_dag_code():
        return
    for name in ("on_failure_callback", "on_success_callback"):
        callbacks = getattr(dag, name) or []
        earlier = callbacks if isinstance(callbacks, list) else [callbacks]
        setattr(dag, name, [*earlier, ReleaseOfRun(lock_and_record)])
        # The scheduler checks this attribute. Airflow sets the attribute only for callbacks that are passed to the
        # constructor.
        setattr(dag, f"has_{name}", True)


RETRYING = {"retries": 2, "retry_delay": timedelta(seconds=15)}


class SnapshotTaskGroup(TaskGroup):
    """Copy a set of tables into a lake, all exactly as of one position of their source.

    The tasks are, in this order: ``preflight``, ``lock_and_record``, ``snapshot``, ``extract_delta``,
    ``consolidate``::

        with DAG("shop", schedule="@daily", start_date=datetime(2025, 1, 1), catchup=False):
            shop = SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*"], target="s3://lake/raw")
            refresh(shop.published)

    Each copy creates an event of its table's asset: see `airflow_provider_cdc.assets`.

    To create one group for each of several sources::

        SnapshotTaskGroup.partial(tables=["shop.*"], target="s3://lake/{source}").expand(source_conn_id=["eu", "us"])

    Options that few users set are in objects: `Lake`, `Table` and `Merge` in ``target`` and ``tables``, and `Refresh`,
    `Read`, `Limits`, `On`, `Spark` and `Allow`. The page *Options* of the documentation describes all of them::

        SnapshotTaskGroup(
            source_conn_id="shop",
            tables=["crm.*", Table("shop.orders", where="status = 'open'", columns=["id", "status"])],
            target=Lake("s3://lake/raw", format=Iceberg("cdc_catalog"), retention=Retention(7)),
            refresh="auto",
            limits=Limits(max_reads=4),
            on=On(table_error="skip"),
        )

    A plain value stands for an object that sets only its first attribute. Each value may be a template, also in
    objects, except those of `Allow` and the arguments of ``TaskGroup``. A template keeps the type of its value:
    ``tables="{{ params.tables }}"`` is a list if the param is a list. The tasks determine the kind of database from the
    type of the connection. After a transient error, Airflow retries the task twice, unless the ``default_args`` of the
    DAG or the group set another number. After an error that a retry cannot fix, the task fails at once.

    :param source_conn_id: the connection to the source.
    :param tables: the tables to copy: names, patterns, and the objects `Table` and `Merge`.
    :param target: the folder to publish in, or a `Lake`.
    :param arguments: the other arguments of a run (`core.options.arguments.CommonArguments`), and those of
        ``TaskGroup``. Without ``group_id``, the id of the group is ``cdc_snapshot``, and the ids of the tasks have no
        prefix. If a DAG has several of these groups, all but one need ``prefix_group_id=True``.
    :raises ConfigurationError: an argument is unknown to this class and to ``TaskGroup``, or a value is not accepted.
    """

    @accepting_options
    def __init__(
        self,
        *,
        source_conn_id: str,
        tables: Sequence[str | Table | Merge | Mapping[str, object]] | str,
        target: Lake | str,
        **arguments: Unpack[GroupArguments],
    ) -> None:
        sources = {"source_conn_id": source_conn_id, "tables": tables, "target": target}
        self._make(take_options(type(self).__name__, {**sources, **arguments}))

    @classmethod
    def of_options(cls, values: Mapping[str, Any], allow: Allow, **arguments: Any) -> Self:
        """Create a group from the values of options, by option name.

        :param arguments: arguments of ``TaskGroup``.
        """
        group = cls.__new__(cls)
        group._make(Given(values, allow, arguments))
        return group

    def _make(self, given: Given) -> None:
        _check_arguments(given.others)
        super().__init__(**{"group_id": "cdc_snapshot", "prefix_group_id": False, **given.others})
        # RETRYING has the lowest precedence. If RETRYING were passed to the constructor of the group, it would override
        # the default arguments of the DAG.
        self.default_args: dict[str, Any] = {**RETRYING, **(self.dag.default_args or {}), **self.default_args}
        for name in SourceArguments.__annotations__:
            if name not in given.values:
                raise ConfigurationError(f"the group has no {name}", hint=f"give {options_by_name()[name].example}")
        options = with_tables({one.name: given.values.get(one.name, one.default) for one in declared()})
        on_storage = {name: options[name] for name in ("source_conn_id", "storage_conn_id")}
        allowed: dict[str, Any] = {"source_conn_ids": given.allow.source_conn_ids, "targets": given.allow.targets}
        with self:
            self.preflight = PreflightOperator.of_options(given, task_id="preflight")
            self.lock_and_record = LockAndRecordOperator(
                task_id="lock_and_record",
                target=options["target"],
                scratch=options["scratch"],
                plan=self.preflight.output["plan"],
                options=self.preflight.output["options"],
                skipped=self.preflight.output["skipped"],
                missed_past=self.preflight.output["missed_past"],
                may_miss_past=self.preflight.output["may_miss_past"],
                request=self.preflight.output["request"],
                plan_only=options["plan_only"],
                **on_storage,
                **allowed,
            )
            on_spark: dict[str, Any] = {
                "run_uri": self.run_uri,
                "spark_conn_id": options["spark_conn_id"],
                "conf": options["spark_conf"],
                "shared_app_seconds": options["shared_app_seconds"],
                **on_storage,
            }
            self.snapshot = SnapshotOperator(task_id="snapshot", **on_spark)
            self.extract_delta = ExtractDeltaOperator(task_id="extract_delta", **on_spark)
            self.consolidate = ConsolidateOperator(
                task_id="consolidate",
                outlets=outlets_of(
                    options["source_conn_id"],
                    options["tables"],
                    options["on_table_error"],
                    self.copies,
                    target=options["target"],
                    in_part=bool(options["where"] or options["columns"] or options["merge"]),
                    partition_key=options["partition_key"],
                ),
                **on_spark,
            )
            self.snapshot >> self.extract_delta >> self.consolidate
        release_when_the_run_ends(self.dag, self.lock_and_record)

    @classmethod
    def partial(cls, **shared: Unpack[PartialArguments]) -> PartialGroup[SnapshotTaskGroup]:
        """Prepare a group for each of several sources.

        Pass the other arguments to `expand` or `expand_kwargs` of the returned object.

        :param shared: the arguments that all groups have in common.
        :raises ConfigurationError: an argument is unknown to this class and to ``TaskGroup``, or a value is not
            accepted.
        """
        given = take_options(f"{cls.__name__}.partial", shared)
        _check_arguments(given.others)
        return PartialGroup(cls.of_options, given)

    @property
    def run_uri(self) -> XComArg:
        """The run's folder, which holds its manifest."""
        return self.lock_and_record.output["run_uri"]

    @property
    def copies(self) -> AssetAlias:
        """The asset alias of this group. A DAG that is scheduled on the alias runs whenever this group has published
        copies, of any tables and in any target.

        For the asset of one table, see `airflow_provider_cdc.assets.table_asset`.
        """
        return copies_alias(self.dag.dag_id, str(self.group_id))

    @property
    def published(self) -> XComArg:
        """The URI of each table's new files, by table name."""
        return self.consolidate.output["published"]


def _check_arguments(given: Mapping[str, Any]) -> None:
    """Reject unknown arguments. Airflow's own error message would name ``TaskGroup`` and would list only the arguments
    of ``TaskGroup``."""
    of_airflow = [name for name in signature(TaskGroup.__init__).parameters if name not in ("self", "kwargs")]
    check_names(given, [*places(), *of_airflow], SnapshotTaskGroup.__name__, "argument")
