"""What the Spark steps check, whatever the kind of source: declarations of what looks while it does its own work."""

from __future__ import annotations

from airflow_provider_cdc.core.checks import Check, Moment, Raised

CHECKS: tuple[Check[None], ...] = (
    Check(
        "run.same-kind",
        "The connection is of the kind of source that the run began on.",
        (),
        "correct the connection, or trigger a new run",
        raised_by=(Raised(Moment.EACH_STEP, "jobs.runtime.step:run_step"),),
    ),
    Check(
        "run.one-beginning",
        "At most one beginning of a run is ever published.",
        (),
        "clear lock_and_record and the tasks after it",
        raised_by=(
            Raised(Moment.EACH_STEP, "jobs.runtime.step:run_step"),
            Raised(Moment.BEFORE_COMMIT, "jobs.consolidate.step:_consolidate"),
        ),
    ),
    Check(
        "run.chunk-order",
        "Chunks do not overlap: the keys of each are below those of the next.",
        (),
        "report it with the table's definition and the server's version",
        raised_by=(Raised(Moment.READS_ENDED, "jobs.snapshot.key_order:check_key_order"),),
    ),
    Check(
        "run.odd-values",
        "A value that no Arrow type holds is published by the policy that the run has, or is of a row that the window "
        "takes out.",
        (),
        "set unrepresentable, or correct the value",
        raised_by=(
            Raised(Moment.READING, "jobs.snapshot.survivors:check_count"),
            Raised(Moment.BEFORE_COMMIT, "jobs.snapshot.survivors:check_survivors"),
        ),
    ),
    Check(
        "run.rows-again",
        "Rows that are read again are there exactly if the log says so (again).",
        (),
        "REINDEX the index that does not find its rows, and trigger a new run",
        raised_by=(Raised(Moment.READS_ENDED, "jobs.snapshot.reread:ReadAgain._table"),),
    ),
    Check(
        "run.prepared",
        "The rows of a prepared transaction that commits in the window are in the log.",
        (),
        "trigger a new run",
        raised_by=(Raised(Moment.LOG_READ, "jobs.extract_delta.step:_read_window"),),
    ),
    Check(
        "run.rows-of-the-log",
        "Every row that the log takes out of a keyless table was read.",
        (),
        "trigger a new run; if it recurs, report it with the server's version",
        raised_by=(
            Raised(Moment.BEFORE_COMMIT, "jobs.consolidate.touched_rows:TouchedKeys.check_all_found"),
            Raised(Moment.ROLL_FORWARD, "jobs.consolidate.touched_rows:TouchedKeys.check_all_found"),
        ),
    ),
    Check(
        "run.rows-of-the-copy",
        "Each row of a copy that is rolled forward is, bit for bit, what the log says it was, and there exactly if the "
        "log says so.",
        (),
        "read the table in full (refresh=full)",
        raised_by=(
            Raised(Moment.ROLL_FORWARD, "jobs.roll_forward.plan:roll_forward"),
            Raised(Moment.ROLL_FORWARD, "jobs.roll_forward.task:RollTask"),
        ),
    ),
    Check(
        "run.files",
        "Each file is what its record says, read to its last byte.",
        (),
        "clear the task that wrote the file, or trigger a new run",
        raised_by=(
            Raised(Moment.BEFORE_COMMIT, "jobs.runtime.verify_files:require_whole"),
            Raised(Moment.ROLL_FORWARD, "jobs.roll_forward.plan:noting_damage"),
        ),
    ),
)
