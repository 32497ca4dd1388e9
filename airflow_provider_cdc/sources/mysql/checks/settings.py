"""Checks of the server settings on which exactness depends.

Some settings, such as the row image and the format, are also visible in the log. They are checked again on each event,
because a session can set its own values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import RunContext, ServerContext
from airflow_provider_cdc.sources.mysql.server.dialect import SELF_MANAGED, Service
from airflow_provider_cdc.sources.mysql.server.session import is_server_itself

_WHEN = (Moment.PREFLIGHT, Moment.EACH_STEP, Moment.ROLL_FORWARD)
_SINCE_IT_BEGAN = (Moment.EACH_STEP, Moment.ROLL_FORWARD)


@dataclass(frozen=True)
class _Rule:
    """The rule for a global variable: its allowed values, and the reason why other values are wrong.

    :param absent: the value to assume if the server does not have the variable.
    :param of_replicas: the rule applies to replicas only.
    """

    variable: str
    allowed: tuple[str, ...]
    why: str
    absent: str = "unknown"
    of_replicas: bool = False

    def hint(self, service: Service) -> str:
        return service.set(self.variable, self.allowed[0])

    def problems(self, context: ServerContext) -> Iterable[Problem]:
        if self.of_replicas and not context.may_be_replica:
            return
        values = context.variables(_VARIABLES)
        if values.get(self.variable, self.absent) not in self.allowed:
            what = f"is {values.get(self.variable, 'unknown')}: {self.why}"
            yield Problem(self.variable, what, self.hint(context.service))


_RULES = (
    (
        "mysql.log",
        "The server writes a binary log",
        _Rule("log_bin", ("ON",), "there is no binary log, so changes during the reads are unknown"),
    ),
    (
        "mysql.gtids",
        "Every transaction has a GTID",
        _Rule("gtid_mode", ("ON",), "transactions have no GTIDs, so a position cannot be named"),
    ),
    (
        "mysql.gtid-consistency",
        "The server accepts only statements that can be logged under one GTID",
        _Rule("enforce_gtid_consistency", ("ON",), "some transactions may be logged without a GTID"),
    ),
    (
        "mysql.row-format",
        "The log contains the changed rows, not the statements that changed them",
        _Rule("binlog_format", ("ROW",), "changes are logged as statements, without the rows"),
    ),
    (
        "mysql.row-image",
        "The log contains all columns of the changed rows",
        _Rule("binlog_row_image", ("FULL",), "the log leaves out columns of changed rows"),
    ),
    (
        "mysql.commit-order",
        "Transactions become visible in the order of the log",
        _Rule(
            "binlog_order_commits",
            ("ON",),
            "transactions may become visible in an order that differs from the log and from gtid_executed",
        ),
    ),
    (
        "mysql.log-errors",
        "A transaction that cannot be logged is not committed",
        _Rule(
            "binlog_error_action",
            ("ABORT_SERVER",),
            "after a failed write to the log, the server continues without a log",
        ),
    ),
    (
        "mysql.damaged-pages",
        "Damaged pages raise errors, and rows of uncommitted transactions are not visible",
        _Rule(
            "innodb_force_recovery",
            ("0",),
            "damaged pages are skipped without an error, and rows of uncommitted transactions may be visible",
            absent="0",
        ),
    ),
    (
        "mysql.replica-log",
        "A replica logs the transactions that it applies",
        _Rule(
            "log_replica_updates",
            ("ON",),
            "the server is a replica and does not log the transactions that it applies",
            of_replicas=True,
        ),
    ),
    (
        "mysql.replica-commit-order",
        "A replica commits in the order of its source",
        _Rule(
            "replica_preserve_commit_order",
            ("ON",),
            "the server is a replica and may commit in an order that differs from its source",
            of_replicas=True,
        ),
    ),
)
_VARIABLES = tuple(rule.variable for _, _, rule in _RULES)

_NO_PROXY = "connect to the server directly, or configure the proxy to forward connections unchanged"


def _proxy(context: ServerContext) -> Iterable[Problem]:
    if not is_server_itself(context.connection):
        yield Problem(
            "connection",
            "a proxy answers instead of the server, and may forward statements to several servers",
            _NO_PROXY,
        )


SETTINGS: tuple[Check[ServerContext], ...] = (
    Check(
        "mysql.no-proxy",
        "All statements of a session reach the same server.",
        _WHEN,
        _NO_PROXY,
        _proxy,
        (Raised(Moment.EACH_SESSION, "sources.mysql.server.session:_check_server"),),
    ),
    *(
        Check(id_, f"{protects} (`{rule.variable}`).", _WHEN, rule.hint(SELF_MANAGED), rule.problems)
        for id_, protects, rule in _RULES
    ),
)


def _set_since(context: RunContext) -> Iterable[Problem]:
    for name, when in context.state.last_set.items():
        if when and when != context.expected.last_set.get(name, ""):
            yield Problem(
                name,
                f"was set at {when}, after the run began; the values in between are unknown",
                _LEAVE_ALONE,
            )


def _other_start(context: RunContext) -> Iterable[Problem]:
    found, expected = context.state.fixed, context.expected.fixed
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield Problem(
                name,
                f"has been {found.get(name, 'unknown')} since the server was restarted; when the run began, the value "
                f"was {expected.get(name, 'unknown')}",
                _LEAVE_ALONE,
            )


_LEAVE_ALONE = "correct the setting, do not change it during a run, and trigger a new run"

SETTINGS_SINCE: tuple[Check[RunContext], ...] = (
    Check(
        "mysql.settings-untouched",
        "Settings that do not appear in the log were not changed during the run, not even temporarily.",
        _SINCE_IT_BEGAN,
        _LEAVE_ALONE,
        _set_since,
    ),
    Check(
        "mysql.settings-of-the-start",
        "No restart of the server changed its log filters, its version, or its handling of foreign keys and names.",
        _SINCE_IT_BEGAN,
        _LEAVE_ALONE,
        _other_start,
    ),
)
