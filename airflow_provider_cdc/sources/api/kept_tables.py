"""The optional capability of a source to look at tables whose finished reads are kept when a run moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self, runtime_checkable

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import SchemaChanged


@runtime_checkable
class KeepsTables(Protocol):
    """A source as of a run (`Source.of_run`) whose log has the statements that change tables, and that compares facts
    about tables with those that were recorded."""

    def altered_in_log(self, tables: Sequence[Table]) -> Mapping[TableName, SchemaChanged]:
        """Return the tables that a statement in the log since the position of the run changes, each with an error that
        names the statement. If the log has something at which a run stops anyway, later statements may be missing.

        :raises LogGone: the log no longer reaches back to the position.
        """

    def renewed(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Check that nothing has changed ``tables`` without an entry in the log since they were recorded, and return
        them with the present facts. Later checks compare the tables with these facts.

        :raises SchemaChanged: a table was changed without an entry in the log.
        :raises LogGone: the log no longer reaches back to the position of the run.
        """

    def with_facts_of(self, identity: Mapping[str, str]) -> Self:
        """Return this source for tables whose facts were renewed just before a later position of the run was fixed.
        ``identity`` is what was recorded with that position. The log before it explains no later change."""
