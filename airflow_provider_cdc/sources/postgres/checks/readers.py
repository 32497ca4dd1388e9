"""What sessions and readers look at while they do their own work: declarations, and where each error is raised."""

from __future__ import annotations

from airflow_provider_cdc.core.checks import Check, Moment, Raised

_WALKER = "sources.postgres.log.walker:LogWalker"
_NEW_RUN = "leave the definitions of copied tables alone while a run lasts; trigger a new run"

READERS: tuple[Check[None], ...] = (
    Check(
        "postgres.session-values",
        "A session has the values that it began with.",
        (),
        "connect to the server itself: something in between drops start-up options, or an event trigger sets them",
        raised_by=(Raised(Moment.EACH_SESSION, "sources.postgres.server.session_setup:check"),),
    ),
    Check(
        "postgres.slot-of-the-server",
        "The slot was made on the server that the tables are read from.",
        (),
        "point the connection to one server alone, and trigger a new run",
        raised_by=(Raised(Moment.POSITION_FIXED, "sources.postgres.steps.snapshot:_check_made"),),
    ),
    Check(
        "postgres.schemas-at-the-position",
        "The tables that are recorded are the tables at the run's position.",
        (),
        "let the DDL end, and trigger a new run",
        raised_by=(Raised(Moment.POSITION_FIXED, "sources.postgres.steps.snapshot:record_initial"),),
    ),
    Check(
        "postgres.sampled-values",
        "The first and the last rows of each table can be published.",
        (),
        "set unrepresentable, or correct the values",
        raised_by=(Raised(Moment.PREFLIGHT, "sources.postgres.chunking.sample:sample"),),
    ),
    Check(
        "postgres.tables-in-place",
        "Each chunk is of the relation that was recorded, in its first file, with the same columns.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READING, "sources.postgres.steps.chunk_reader:check_in_place"),
            Raised(Moment.READING, "sources.postgres.decode.columns:finish_batch"),
        ),
    ),
    Check(
        "postgres.tables-unchanged",
        "The catalog agrees with what was recorded of the tables, their types and partitions.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READING, "sources.postgres.catalog.schema_difference:check_unchanged"),
            Raised(Moment.READS_ENDED, "sources.postgres.catalog.schema_difference:check_unchanged"),
        ),
    ),
    Check(
        "postgres.tables-in-the-view",
        "In the view the tables are what was recorded, and partitions that came meanwhile are empty (again, exported).",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READS_ENDED, "sources.postgres.steps.snapshot:bound_view"),
            Raised(Moment.READS_ENDED, "sources.postgres.catalog.new_partitions:why_not_empty"),
        ),
    ),
    Check(
        "postgres.database-views",
        "A database view means the same in every session, and calls nothing of users.",
        (),
        "let the view use what the message lists, or leave it out",
        raised_by=(
            Raised(Moment.PREFLIGHT, "sources.postgres.catalog.safe_views:view_problems"),
            Raised(Moment.POSITION_FIXED, "sources.postgres.catalog.safe_views:view_problems"),
        ),
    ),
    Check(
        "postgres.database-views-in-place",
        "What a database view reads was not altered, rewritten or truncated, and a materialized view not refreshed.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.READING, "sources.postgres.catalog.view_reads:check_view_read"),
            Raised(Moment.READS_ENDED, "sources.postgres.catalog.schema_difference:check_unchanged"),
        ),
    ),
    Check(
        "postgres.no-crash",
        "No crash took back what was read: a part counts once the log is on disk past its last read.",
        (),
        "the task reads such parts again by itself",
        raised_by=(
            Raised(Moment.READING, "sources.postgres.slots.durability_wait:wait"),
            Raised(Moment.READS_ENDED, "jobs.snapshot.step:_snapshot"),
        ),
    ),
    Check(
        "postgres.end-of-reads",
        "The log still has the mark that the reads ended with.",
        (),
        "the server was put back to an earlier state: trigger a new run",
        raised_by=(Raised(Moment.LOG_READ, f"{_WALKER}.close"),),
    ),
    Check(
        "postgres.definitions",
        "Each relation in the log is the one of the schema, and none that is copied was truncated.",
        (),
        _NEW_RUN,
        raised_by=(
            Raised(Moment.LOG_READ, f"{_WALKER}._relation"),
            Raised(Moment.LOG_READ, f"{_WALKER}._truncate"),
        ),
    ),
    Check(
        "postgres.row-images",
        "The log has whole old rows (replica identity FULL), or (again) the keys of all rows that were touched.",
        (),
        "set the replica identity of the table and its partitions, and trigger a new run",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_WALKER}._check_identity"),
            Raised(Moment.LOG_READ, f"{_WALKER}._error"),
        ),
    ),
    Check(
        "postgres.known-messages",
        "The reader knows every message of the log, and its bytes are right.",
        (),
        "report the message with the server's version",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_WALKER}._odd"),
            Raised(Moment.LOG_READ, f"{_WALKER}._damaged"),
        ),
    ),
    Check(
        "postgres.standing-record",
        "The standing slot has the log since the copy, its record knows the copy, and the table is what it was.",
        (),
        "the table is read in full, or rolled forward from another copy",
        raised_by=(
            Raised(Moment.ROLL_FORWARD, "sources.postgres.steps.roll_forward:refusals_since"),
            Raised(Moment.ROLL_FORWARD, "sources.postgres.steps.roll_forward:keep_window"),
        ),
    ),
)
