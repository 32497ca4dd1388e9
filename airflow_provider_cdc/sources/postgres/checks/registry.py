"""Lists all checks of PostgreSQL, for documents and tests. Code that runs checks imports `asked` instead, because
`asked` loads no kernels."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_REQUEST, OF_TABLES
from airflow_provider_cdc.sources.postgres.checks.history import HISTORY
from airflow_provider_cdc.sources.postgres.checks.past import PAST
from airflow_provider_cdc.sources.postgres.checks.standbys import LOG_OF_STANDBYS, LOG_ON_STANDBY, READ_ON_STANDBYS

# Declares the checks that sessions and readers make during a run, and the code that raises the error of each check.


_WALKER = "sources.postgres.log.walker:LogWalker"
_NEW_RUN = "do not change the definitions of copied tables during a run; trigger a new run"

READERS: tuple[Check[None], ...] = (
    Check(
        "postgres.session-values",
        "The settings of a session have not changed after the session was opened.",
        (),
        "connect to the server directly: a pooler drops the start-up options, or an event trigger changes the settings",
        raised_by=(Raised(Moment.EACH_SESSION, "sources.postgres.server.session_setup:check"),),
    ),
    Check(
        "postgres.slot-of-the-server",
        "The tables are read from the server on which the slot was created.",
        (),
        "point the connection to a single server, and trigger a new run",
        raised_by=(Raised(Moment.POSITION_FIXED, "sources.postgres.steps.snapshot:_check_made"),),
    ),
    Check(
        "postgres.schemas-at-the-position",
        "The run recorded the tables as they were at its position.",
        (),
        "wait until the DDL has ended, and trigger a new run",
        raised_by=(Raised(Moment.POSITION_FIXED, "sources.postgres.steps.snapshot:record_initial"),),
    ),
    Check(
        "postgres.sampled-values",
        "The first and the last rows of each table can be published.",
        (),
        "set `On.unrepresentable`, or correct the values",
        raised_by=(Raised(Moment.PREFLIGHT, "sources.postgres.chunking.chunks:sample"),),
    ),
    Check(
        "postgres.tables-in-place",
        "Each chunk is read from the relation that the run recorded. The relation still has the recorded file and "
        "columns.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READING, "sources.postgres.steps.chunk_reader:check_in_place"),
            Raised(Moment.READING, "sources.postgres.decode.columns:finish_batch"),
        ),
    ),
    Check(
        "postgres.tables-unchanged",
        "The tables, types and partitions in the catalog match the run's record.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READING, "sources.postgres.catalog.schema_difference:check_unchanged"),
            Raised(Moment.READS_ENDED, "sources.postgres.catalog.schema_difference:check_unchanged"),
        ),
    ),
    Check(
        "postgres.tables-in-the-view",
        "With the consistency `again` or `exported`, the tables in the exported snapshot have their recorded "
        "definitions. Partitions that were added later are empty in this snapshot.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READS_ENDED, "sources.postgres.steps.snapshot:bound_view"),
            Raised(Moment.READS_ENDED, "sources.postgres.catalog.schema:why_not_empty"),
        ),
    ),
    Check(
        "postgres.database-views",
        "A database view gives the same rows in every session, and calls no user-defined code.",
        (),
        "the message lists parts of the view: remove these parts, or leave the view out",
        raised_by=(
            Raised(Moment.PREFLIGHT, "sources.postgres.catalog.safe_views:view_problems"),
            Raised(Moment.POSITION_FIXED, "sources.postgres.catalog.safe_views:view_problems"),
        ),
    ),
    Check(
        "postgres.database-views-in-place",
        "The tables that a database view reads were not altered, rewritten or truncated. Materialized views were not "
        "refreshed.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READING, "sources.postgres.catalog.safe_views:check_view_read"),
            Raised(Moment.READS_ENDED, "sources.postgres.catalog.schema_difference:check_unchanged"),
        ),
    ),
    Check(
        "postgres.no-crash",
        "The server did not lose rows in a crash after the run read them. A part of a table counts as read only when "
        "the log is on disk up to the last read of this part.",
        (),
        "do nothing: the task reads these parts again",
        raised_by=(
            Raised(Moment.READING, "sources.postgres.slots.waits:wait"),
            Raised(Moment.READS_ENDED, "jobs.snapshot.step:read_tables"),
        ),
    ),
    Check(
        "postgres.end-of-reads",
        "The log still has the message that the run wrote to it at the end of the reads.",
        (),
        "the server was restored to an earlier state: trigger a new run",
        raised_by=(Raised(Moment.LOG_READ, f"{_WALKER}.close"),),
    ),
    Check(
        "postgres.definitions",
        "The log shows each relation with the recorded schema, and no copied relation was truncated.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.LOG_READ, f"{_WALKER}._relation"),
            Raised(Moment.LOG_READ, f"{_WALKER}._truncate"),
        ),
    ),
    Check(
        "postgres.row-images",
        "The log has complete old rows (replica identity FULL) or, with the consistency `again`, the keys of all "
        "touched rows.",
        (),
        "set the replica identity of the table and its partitions, and trigger a new run",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_WALKER}._check_identity"),
            Raised(Moment.LOG_READ, f"{_WALKER}._error"),
        ),
    ),
    Check(
        "postgres.known-messages",
        "The log reader knows every message in the log, and no message is damaged.",
        (),
        "report the message with the server's version",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_WALKER}._odd"),
            Raised(Moment.LOG_READ, f"{_WALKER}._damaged"),
        ),
    ),
    Check(
        "postgres.standing-record",
        "The standing slot has the log after the copy, and the slot's record lists the copy. The table was not "
        "altered after the copy.",
        (),
        "the table is read in full, or rolled forward from another copy",
        raised_by=(
            Raised(Moment.ROLL_FORWARD, "sources.postgres.steps.roll_forward:refusals_since"),
            Raised(Moment.ROLL_FORWARD, "sources.postgres.steps.roll_forward:keep_window"),
        ),
    ),
)


CHECKS: tuple[Check[Any], ...] = (
    *OF_A_REQUEST,
    *OF_TABLES,
    *HISTORY,
    *PAST,
    *LOG_ON_STANDBY,
    *READ_ON_STANDBYS,
    *LOG_OF_STANDBYS,
    *READERS,
)
