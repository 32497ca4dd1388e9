"""The part of `Source` that a run needs before it begins: plans of tables, and facts about the server."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_cdc.core.options.run import AS_DECLARED, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError, Problem, TransientError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Runway:
    """How long the source will keep its log from now on. ``seconds`` is None if the time is unknown, or if no setting
    limits the time. In the second case, ``unbounded`` is true. ``why`` is the explanation."""

    seconds: float | None
    why: str
    unbounded: bool = False


@dataclass(frozen=True)
class Reach:
    """Whether a server has reached a target.

    If the server has not reached the target, ``lacks`` describes the missing part.
    """

    reached: bool
    lacks: str = ""


class Planning(ABC):
    """The methods of `sources.api.source.Source` for plans and for questions about the server."""

    kind: ClassVar[str]
    """The name of the kind of database in ``sources.api.registry``."""

    load_signals: ClassVar[frozenset[str]] = frozenset()
    """The names of the signals that this kind of source can measure (`load`)."""

    def check_server(self) -> list[Problem]:
        """Return the problems of the server's settings and of the user's privileges that do not depend on the copied
        tables.

        :raises ConfigurationError: the connection cannot work, or the server is too old.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return []

    @abstractmethod
    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        """Check all requirements of a run, and decide how each table is read.

        :param patterns: ``schema.table``. ``*`` matches any sequence of characters in either part. A pattern that
            begins with ``!`` excludes tables that earlier patterns named (``!shop._*_gho``).
        :param parts: the part of each table that is copied. Columns that the run does not read cause no problems.
        :raises PreflightError: there are problems. The error lists all of them.
        :raises LockNotGranted: a session has a lock that blocks readers of a table. The message names the session and
            the table.
        :raises SourceUnavailable: the server cannot be reached.
        """

    @abstractmethod
    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        """Search a sample of each table's rows for values that would stop the run because no Arrow type holds them. The
        number of rows and the time are limited. Return a problem for each column with such values.
        """

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        """Return the planned tables in their current state.

        :raises SchemaChanged: a table no longer exists.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"tables of a {self.kind} source can only be copied as a whole",
            where="parameter where (Table.where)",
            hint="leave `Table.where` and `Table.columns` empty, and give no `Merge`",
        )

    def comparable_texts(self, table: Table) -> dict[str, str]:
        """Return the columns that are published as text and whose text can be compared, each with the kind of its text:
        ``plain``, ``label`` or ``uuid``. In all other columns that are published as text, the text is the printed form
        of a value of another type."""
        return {}

    def pushed_condition(self, table: Table) -> str:
        """Return the part of the table's condition that the server itself evaluates, in the server's SQL. Empty: the
        server does not evaluate any part of the condition, and sends all rows."""
        return ""

    @abstractmethod
    def arrow_schema(self, table: Table) -> pa.Schema:
        """Return the Arrow schema of a table's rows, as they are published."""

    def column_identities(self, table: Table) -> dict[str, str]:
        """Return the identity of each column, by the column's name. A renamed column keeps its identity. No other
        column ever gets it, in this table or in another table."""
        return {}

    @abstractmethod
    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        """Return chunks of about ``chunk_rows`` rows each. The server confirms that the bounds strictly increase."""

    def key_order(self, table: Table) -> str | None:
        """Return the key's first column if two conditions are met: chunks are ranges of this column, and its published
        values sort in the same order as in the source. If so, the column's values in one chunk are not greater than the
        values in the next chunk. Return None if this order is not guaranteed."""
        return None

    def key_range(self, table: Table, low: int | None, high: int | None) -> list[Chunk]:
        """Return chunks with all rows whose first key column is from ``low`` (included) to ``high`` (excluded), and
        with no other rows. None: unbounded. The result is empty if such ranges of the table cannot be read."""
        return []

    def load(self, signals: Sequence[str]) -> Mapping[str, float]:
        """Return the present number of each signal. A signal is a name or a query (`is_query`).

        :raises ConfigurationError: a signal cannot be measured: a privilege is missing, or a query does not return one
            number.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"the load of a {self.kind} source cannot be measured",
            where="parameter governor (Limits.governor)",
            hint="leave `Limits.governor` empty",
        )

    @abstractmethod
    def runway(self) -> Runway:
        """Return how long the server will keep its log from now on, according to its settings.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def after_failover(self, options: StepOptions) -> str:
        """Return what happens to the runs of this source if another server takes over from its server, in one line.
        Empty: it is unknown.

        :raises SourceUnavailable: the server cannot be reached.
        """
        return ""

    def has_reached(self, target: AsOf) -> Reach:
        """Return whether the server has reached ``target``.

        A server has reached a position if it has everything up to this position. On MySQL, this means that readers see
        all transactions of the position. On a PostgreSQL primary, the log up to the position is on disk. On a
        PostgreSQL standby, readers see the changes up to the position. A server has reached a time if no commit from
        now on can belong to the state at that time.

        :raises ConfigurationError: the target is a position of another kind of database.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"a {self.kind} source does not report how far its server has advanced",
            where="parameter source_conn_id",
            hint="name a connection to another kind of source",
        )


# The load of a server, for the governor of a run.


THREADS_RUNNING, REPLICA_LAG = "threads_running", "replica_lag_seconds"
HISTORY_LIST, OLDEST_XMIN = "history_list_length", "oldest_xmin_age"
MEASURE_SECONDS = 5
"""The maximum number of seconds that the server may take for a measurement."""
_QUERY = re.compile(r"\s*SELECT\b", re.IGNORECASE)


def is_query(signal: str) -> bool:
    """Return whether a signal is an operator's own query."""
    return bool(_QUERY.match(signal))


def one_number(signal: str, rows: Sequence[Sequence[object]]) -> float:
    """Return the number in the result of a query.

    :raises ConfigurationError: the result is not one number.
    """
    try:
        ((found,),) = rows
        number = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if number != number:
        raise ConfigurationError(
            "the query does not return one row with one number",
            where=f"parameter governor (Limits.governor), {signal}",
            hint="correct the query; COALESCE(…, 0) replaces a NULL",
        )
    return number


def check_load(source: Planning, signals: Collection[str]) -> None:
    """Check, before a run begins, that each signal can be measured.

    :raises PreflightError: some signals cannot be measured. The error lists all of them.
    """
    problems = []
    for signal in signals:
        where = f"parameter governor (Limits.governor), {signal}"
        if not source.load_signals:
            problems.append(
                Problem(where, "the load of this source cannot be measured", "leave `Limits.governor` empty")
            )
        elif signal not in source.load_signals and not is_query(signal):
            known = f"use one of {', '.join(sorted(source.load_signals))}, or a query that begins with SELECT"
            problems.append(Problem(where, f"a {source.kind} source has no signal of this name", known))
        else:
            try:
                source.load([signal])
            except TransientError:
                raise
            except CdcError as error:
                problems.append(Problem(where, error.message, error.hint))
    if problems:
        raise PreflightError(problems)
