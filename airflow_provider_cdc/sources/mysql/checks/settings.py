"""The settings of the server that exactness rests on. Those that the log itself shows (row image, format) are checked
once more on each event: a session can have its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import RunContext, ServerContext
from airflow_provider_cdc.sources.mysql.server.amazon import setting_hint
from airflow_provider_cdc.sources.mysql.server.server import FIXED_PREFIX, LAST_SET
from airflow_provider_cdc.sources.mysql.server.session import is_server_itself

_WHEN = (Moment.PREFLIGHT, Moment.EACH_STEP, Moment.ROLL_FORWARD)
_SINCE_IT_BEGAN = (Moment.EACH_STEP, Moment.ROLL_FORWARD)


@dataclass(frozen=True)
class _Rule:
    """A global variable, the values it may have, and what is wrong with any other.

    ``absent``: what a server counts as that does not have the variable. ``of_replicas``: the rule is for replicas only.
    """

    variable: str
    allowed: tuple[str, ...]
    why: str
    absent: str = "unknown"
    of_replicas: bool = False

    def hint(self, *, amazon: bool) -> str:
        setting = f"{self.variable} = {self.allowed[0]}"
        if amazon:
            return setting_hint(setting)
        if self.variable in ("log_bin", "log_replica_updates", "innodb_force_recovery"):
            return f"start the server with {setting}"
        return f"SET PERSIST {setting}"

    def problems(self, context: ServerContext) -> Iterable[Problem]:
        if self.of_replicas and not context.may_be_replica:
            return
        values = context.variables(_VARIABLES)
        if values.get(self.variable, self.absent) not in self.allowed:
            what = f"is {values.get(self.variable, 'unknown')}: {self.why}"
            yield Problem(self.variable, what, self.hint(amazon=context.is_amazon))


_RULES = (
    (
        "mysql.log",
        "There is a binary log",
        _Rule("log_bin", ("ON",), "there is no binary log, so nothing tells what changed while the tables were read"),
    ),
    (
        "mysql.gtids",
        "Every transaction has a GTID",
        _Rule("gtid_mode", ("ON",), "transactions have no GTIDs, so there is no position to name"),
    ),
    (
        "mysql.gtid-consistency",
        "Every statement can be logged under one GTID",
        _Rule("enforce_gtid_consistency", ("ON",), "some transactions may be logged without a GTID"),
    ),
    (
        "mysql.row-format",
        "The log has the rows that changed, not the statements that changed them",
        _Rule("binlog_format", ("ROW",), "changes are logged as statements, without the rows"),
    ),
    (
        "mysql.row-image",
        "The log has all columns of the rows that changed",
        _Rule("binlog_row_image", ("FULL",), "the log leaves out columns of changed rows"),
    ),
    (
        "mysql.commit-order",
        "Transactions become visible in the order of the log",
        _Rule(
            "binlog_order_commits",
            ("ON",),
            "transactions may become visible in another order than that of the log and of gtid_executed",
        ),
    ),
    (
        "mysql.log-errors",
        "Nothing is committed that could not be logged",
        _Rule(
            "binlog_error_action",
            ("ABORT_SERVER",),
            "after a failed write to the log the server goes on without a log",
        ),
    ),
    (
        "mysql.damaged-pages",
        "Damaged pages raise errors, and rows of transactions that did not commit are not shown",
        _Rule(
            "innodb_force_recovery",
            ("0",),
            "damaged pages are skipped without an error, and rows of transactions that did not commit may be shown",
            absent="0",
        ),
    ),
    (
        "mysql.replica-log",
        "A replica logs what it replicates",
        _Rule(
            "log_replica_updates",
            ("ON",),
            "the server is a replica and does not log what it replicates",
            of_replicas=True,
        ),
    ),
    (
        "mysql.replica-commit-order",
        "A replica commits in the order of its source",
        _Rule(
            "replica_preserve_commit_order",
            ("ON",),
            "the server is a replica and commits in another order than its source",
            of_replicas=True,
        ),
    ),
)
_VARIABLES = tuple(rule.variable for _, _, rule in _RULES)

_NO_PROXY = "connect to the server itself, or let the proxy pass connections on as they are"


def _proxy(context: ServerContext) -> Iterable[Problem]:
    if not is_server_itself(context.connection):
        yield Problem(
            "connection",
            "a proxy answers in place of the server, and may pass statements on to several servers",
            _NO_PROXY,
        )


SETTINGS: tuple[Check[ServerContext], ...] = (
    Check(
        "mysql.no-proxy",
        "All statements of a session reach one and the same server.",
        _WHEN,
        _NO_PROXY,
        _proxy,
        (Raised(Moment.EACH_SESSION, "sources.mysql.server.session:_check_server"),),
    ),
    *(
        Check(id_, f"{protects} (`{rule.variable}`).", _WHEN, rule.hint(amazon=False), rule.problems)
        for id_, protects, rule in _RULES
    ),
)


def _set_since(context: RunContext) -> Iterable[Problem]:
    for key, when in context.state.items():
        if key.startswith(LAST_SET) and when and when != context.expected.get(key, ""):
            yield Problem(
                key.removeprefix(LAST_SET),
                f"was set at {when}, after the run began: what it was in between is unknown",
                _LEAVE_ALONE,
            )


def _other_start(context: RunContext) -> Iterable[Problem]:
    found, expected = context.state, context.expected
    for key in sorted({*found, *expected}):
        if key.startswith(FIXED_PREFIX) and found.get(key) != expected.get(key):
            yield Problem(
                key.removeprefix(FIXED_PREFIX),
                f"is {found.get(key, 'unknown')} since the server was started again; "
                f"when the run began it was {expected.get(key, 'unknown')}",
                _LEAVE_ALONE,
            )


_LEAVE_ALONE = "put the setting right, leave it alone during a run, and trigger a new run"

SETTINGS_SINCE: tuple[Check[RunContext], ...] = (
    Check(
        "mysql.settings-untouched",
        "Settings that the log does not show were not set to something else for a while.",
        _SINCE_IT_BEGAN,
        _LEAVE_ALONE,
        _set_since,
    ),
    Check(
        "mysql.settings-of-the-start",
        "A restart did not change the log filters, the version, or how foreign keys and names are treated.",
        _SINCE_IT_BEGAN,
        _LEAVE_ALONE,
        _other_start,
    ),
)
