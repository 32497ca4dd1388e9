"""All MySQL checks, for documents and tests.

Code that runs checks imports `asked` instead, because `asked` does not load any kernels.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.sources.mysql.checks.asked import OF_A_REQUEST
from airflow_provider_cdc.sources.mysql.checks.history import HISTORY
from airflow_provider_cdc.sources.mysql.checks.past import REPLACED, REPLICATED, SINCE, STATEMENTS
from airflow_provider_cdc.sources.mysql.checks.replicas import COMPARED, REPLICAS
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS_SINCE

# Declarations of the checks that sessions and readers make during other work. Each declaration names the place in the
# code that raises the error.


_REFUSALS = "sources.mysql.log.refusals"

READERS: tuple[Check[None], ...] = (
    Check(
        "mysql.version",
        "The server is MySQL, in a supported version.",
        (),
        "upgrade the server, or copy from a replica of a supported version",
        raised_by=(Raised(Moment.EACH_SESSION, "sources.mysql.server.session:_check_version"),),
    ),
    Check(
        "mysql.session-values",
        "Each session was reset after its login. The session variables keep the values that the run set.",
        (),
        "connect to the server directly: a proxy or connection pooler answers or changes SET statements",
        raised_by=(
            Raised(Moment.EACH_SESSION, "sources.mysql.server.session:_pin"),
            Raised(Moment.EACH_SESSION, "sources.mysql.server.driver:GuardedConnection"),
        ),
    ),
    Check(
        "mysql.position",
        "The server has committed at least one transaction. Otherwise, the position does not identify the server's "
        "history.",
        (),
        "commit any transaction",
        raised_by=(Raised(Moment.POSITION_FIXED, "sources.mysql.steps.snapshot:record_initial"),),
    ),
    Check(
        "mysql.sampled-values",
        "The first and the last rows of each table can be published.",
        (),
        "set `On.unrepresentable`, or correct the values",
        raised_by=(Raised(Moment.PREFLIGHT, "sources.mysql.chunking.chunks:sample"),),
    ),
    Check(
        "mysql.values-sent",
        "The server sends every value completely, however long it is.",
        (),
        "raise max_allowed_packet on the server, or leave the column out",
        raised_by=(Raised(Moment.READING, "sources.mysql.decode.rows:check_whole"),),
    ),
    Check(
        "mysql.bytes-of-rows",
        "The rows that the server sends are complete rows of the table.",
        (),
        "report the error, with the server's version",
        raised_by=(Raised(Moment.READING, "sources.mysql.decode.rows:StatementReader"),),
    ),
    Check(
        "mysql.columns-unchanged",
        "The tables still have the columns and keys that the run recorded.",
        (),
        "do not change the definitions of copied tables during a run; trigger a new run",
        raised_by=(
            Raised(Moment.READING, "sources.mysql.tables.schema:check_unchanged"),
            Raised(Moment.READS_ENDED, "sources.mysql.tables.schema:check_unchanged"),
            Raised(Moment.ROLL_FORWARD, "sources.mysql.tables.schema:difference"),
        ),
    ),
    Check(
        "mysql.definitions",
        "The log has no TRUNCATE of a copied table, and no DDL that changes its rows or the meaning of their values. "
        "Table maps in the log match the recorded columns.",
        (),
        "do not change the definitions of copied tables during a run; trigger a new run",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_REFUSALS}:touched"),
            Raised(Moment.LOG_READ, f"{_REFUSALS}:bad_rows"),
            Raised(Moment.ROLL_FORWARD, "sources.mysql.steps.roll_forward:refusals_since"),
        ),
    ),
    Check(
        "mysql.identity",
        "No table was replaced without an entry in the log (see below).",
        (),
        "run loads and restores with the log enabled (sql_log_bin=1); trigger a new run",
        raised_by=(
            Raised(Moment.POSITION_FIXED, "sources.mysql.log.replaced:check_not_replaced"),
            Raised(Moment.READING, "sources.mysql.log.replaced:check_not_replaced"),
            Raised(Moment.READS_ENDED, "sources.mysql.log.replaced:check_not_replaced"),
            Raised(Moment.ROLL_FORWARD, "sources.mysql.log.replaced:replaced_since"),
        ),
    ),
    Check(
        "mysql.row-images",
        "Each row event has all columns of its rows. If the run needs a JSON document, the row event has the whole "
        "document.",
        (),
        "let all sessions use binlog_row_image=FULL, and leave binlog_row_value_options empty",
        raised_by=(Raised(Moment.LOG_READ, f"{_REFUSALS}:bad_rows"),),
    ),
    Check(
        "mysql.statement-writes",
        "A change that was logged as a statement, without rows, cannot have affected a copied table.",
        (),
        "let all sessions use binlog_format=ROW",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_REFUSALS}:logged_as_statement"),
            Raised(Moment.LOG_READ, "sources.mysql.log.statement_writes:check_writes"),
        ),
    ),
    Check(
        "mysql.cascades-logged",
        "If a foreign key changed rows of a copied table, the log contains these changes.",
        (),
        "trigger a new run at a time when no rows of the parent tables change for a minute",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_REFUSALS}:bad_rows"),
            Raised(Moment.READING, "sources.mysql.log.segments:check_parents"),
        ),
    ),
    Check(
        "mysql.gtid-of-each",
        "Every transaction in the log since the run began has a GTID. Every file is checked, because the GTIDs at "
        "the start of a file do not show anonymous transactions in earlier files.",
        (),
        "set gtid_mode=ON, and trigger a new run",
        raised_by=(Raised(Moment.LOG_READ, f"{_REFUSALS}:unknown"),),
    ),
    Check(
        "mysql.known-events",
        "The log reader knows every event and every statement in the log.",
        (),
        "report the event, with the server's version",
        raised_by=(
            Raised(Moment.LOG_READ, f"{_REFUSALS}:unknown"),
            Raised(Moment.LOG_READ, f"{_REFUSALS}:not_understood"),
            Raised(Moment.LOG_READ, f"{_REFUSALS}:out_of_place"),
        ),
    ),
    Check(
        "mysql.log-bytes",
        "The log is undamaged: the lengths, positions and checksums of its events are correct.",
        (),
        "run mysqlbinlog --verify-binlog-checksum to find out whether the file is damaged",
        raised_by=(Raised(Moment.LOG_READ, f"{_REFUSALS}:damaged"),),
    ),
)


CHECKS: tuple[Check[Any], ...] = (
    *OF_A_REQUEST,
    *HISTORY,
    *SETTINGS_SINCE,
    *REPLICATED,
    *SINCE,
    *STATEMENTS,
    *REPLACED,
    *REPLICAS,
    *COMPARED,
    *READERS,
)
