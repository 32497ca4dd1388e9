"""Declarations of the checks that the Spark steps make during their work, for every kind of source."""

from __future__ import annotations

from airflow_provider_cdc.core.checks import Check, Moment, Raised

CHECKS: tuple[Check[None], ...] = (
    Check(
        "run.same-kind",
        "The connection still leads to the kind of source (MySQL or PostgreSQL) on which the run began.",
        (),
        "correct the connection, or trigger a new run",
        raised_by=(Raised(Moment.EACH_STEP, "jobs.runtime.step:run_step"),),
    ),
    Check(
        "run.one-beginning",
        "If a run is started several times, at most one of the starts publishes copies.",
        (),
        "clear the task `lock_and_record` and all tasks after it",
        raised_by=(
            Raised(Moment.EACH_STEP, "jobs.runtime.step:run_step"),
            Raised(Moment.BEFORE_COMMIT, "jobs.consolidate.step:_consolidate"),
        ),
    ),
    Check(
        "run.chunk-order",
        "Chunks do not overlap: the keys of each chunk are below the keys of the next one.",
        (),
        "report the error with the table's definition and the server's version",
        raised_by=(Raised(Moment.READS_ENDED, "jobs.snapshot.parts:check_key_order"),),
    ),
    Check(
        "run.odd-values",
        "The option `On.unrepresentable` decides how values that no Arrow type holds are published. A value does not "
        "count if a change in the window removes its row.",
        (),
        "set `On.unrepresentable`, or correct the value",
        raised_by=(
            Raised(Moment.READING, "jobs.reads:check_count"),
            Raised(Moment.BEFORE_COMMIT, "jobs.reads:check_remaining"),
        ),
    ),
    Check(
        "run.rows-again",
        "With the consistency `again`: when the run reads touched rows again, it finds exactly the rows that exist "
        "according to the log.",
        (),
        "REINDEX the index of the key, and trigger a new run",
        raised_by=(Raised(Moment.READS_ENDED, "jobs.snapshot.reread:ReadAgain._table"),),
    ),
    Check(
        "run.prepared",
        "If a prepared transaction commits in the window, its rows are in the log.",
        (),
        "trigger a new run",
        raised_by=(Raised(Moment.LOG_READ, "jobs.extract_delta.read_window:read_window"),),
    ),
    Check(
        "run.rows-of-the-log",
        "If a table has no key and the log removes one of its rows, the run has read this row.",
        (),
        "trigger a new run; if it recurs, report it with the server's version",
        raised_by=(
            Raised(Moment.BEFORE_COMMIT, "jobs.apply.touched_rows:TouchedKeys.check_all_found"),
            Raised(Moment.ROLL_FORWARD, "jobs.apply.touched_rows:TouchedKeys.check_all_found"),
        ),
    ),
    Check(
        "run.rows-of-the-copy",
        "When a copy is rolled forward, the copy contains exactly those changed rows that existed according to the "
        "log. If the file of such a row is written again, the row in the copy equals the old row in the log, bit for "
        "bit.",
        (),
        "set `refresh` to `full`, so that the run reads the table in full",
        raised_by=(
            Raised(Moment.ROLL_FORWARD, "jobs.roll_forward.plan:roll_forward"),
            Raised(Moment.ROLL_FORWARD, "jobs.roll_forward.task:RollTask"),
        ),
    ),
    Check(
        "run.files",
        "Each file matches its record. The check reads the whole file.",
        (),
        "clear the task that wrote the file, or trigger a new run",
        raised_by=(
            Raised(Moment.BEFORE_COMMIT, "jobs.runtime.verify_files:require_whole"),
            Raised(Moment.ROLL_FORWARD, "jobs.roll_forward.plan:record_damage_on_error"),
        ),
    ),
)
