"""Checks of the server on which a run began, and of the run's slots and publications.

These checks raise errors instead of returning problems. The class of the error shows whether the run can continue, and
whether the source was replaced or reset to an earlier state.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import ExactnessError, LogGone, Problem, SourceReplaced
from airflow_provider_cdc.sources.postgres.checks.context import RunContext
from airflow_provider_cdc.sources.postgres.server.facts import PublicationState
from airflow_provider_cdc.sources.postgres.server.session import Connection, value
from airflow_provider_cdc.sources.postgres.slots import publications, slots
from airflow_provider_cdc.sources.postgres.slots.waits import parse_log_end

_WHEN = (Moment.EACH_STEP,)
_EACH_SESSION = Raised(Moment.EACH_SESSION, "sources.postgres.server.session_setup:_check_server")
_SINCE_A_COPY = Raised(Moment.ROLL_FORWARD, "sources.postgres.steps.roll_forward:_check_since")


def _primary(context: RunContext) -> Iterable[Problem]:
    if value(context.connection, "pg_is_in_recovery()"):
        raise SourceReplaced(
            "the connection now reaches a standby",
            where="pg_is_in_recovery",
            hint="point the connection to the primary that the run began on, or trigger a new run",
        )
    return ()


def _same_server(context: RunContext) -> Iterable[Problem]:
    found, expected = context.identity.of_server, context.expected.of_server
    for name in expected:
        if found[name] != expected[name]:
            raise SourceReplaced(
                f"this is not the server on which the run began: {name} was {expected[name]}, here it is {found[name]}",
                where=name,
                hint="point the connection back to the server on which the run began, or trigger a new run on this one",
            )
    return ()


def _slots(context: RunContext) -> Iterable[Problem]:
    # The run advances its slot at most to the end of the recorded chain of its pieces.
    expected, spooled = context.expected, context.expected.reached
    furthest = parse_log_end(spooled.end)[0] if spooled is not None else context.position
    _check_slot(context.log, expected.slot, context.position, furthest)
    for start, name in expected.forward_slots.items():
        _check_slot(context.log, name, start, start)
    return ()


def _publications(context: RunContext) -> Iterable[Problem]:
    expected = context.expected
    _check_publication(context.connection, expected.publication, expected.since)
    _check_publication(context.connection, expected.standing, None)
    return ()


def _check_publication(connection: Connection, expected: PublicationState, since: str | None) -> None:
    """Check that a publication is the same as when the run began.

    :param since: the mark after which no session may alter the publication. None: compare its state.
    """
    if expected.state is None:
        return
    name = expected.name
    if since is not None:
        # The check of the tables finds the tables that are no longer in the publication.
        if publications.altered_since(connection, name, since):
            raise ExactnessError(
                "the publication was altered or dropped since the run began",
                where=f"publication {name}",
                hint="do not alter the publication during a run; trigger a new run",
            )
        return
    then, relations = expected.state, expected.relations
    if ":" in then:
        state = publications.members_state(connection, name, relations)
        altered = publications.altered_members(connection, then, state)
    else:
        state = publications.publication_state(connection, name, relations)
        altered = state != then
    if altered:
        raise ExactnessError(
            "the publication was altered since the run began" if state else "the publication was dropped",
            where=f"publication {name}",
            hint="do not alter the publication during a run; trigger a new run",
        )


def _check_slot(connection: Connection, name: str, initial: Lsn, furthest: Lsn) -> None:
    where = f"replication slot {name}"
    hint = "trigger a new run, or clear the task `lock_and_record` and all tasks after it"
    slot = slots.state(connection, name)
    if slot is None:
        raise LogGone("the slot that kept the log for this run no longer exists", where=where, hint=hint)
    if slot.lost:
        raise LogGone(
            f"the server removed log that it had kept for the replication slot (wal_status: {slot.wal_status})",
            where=where,
            hint=f"{hint}; {slot.remedy}, so that the server keeps the log until the run ends",
        )
    if slot.confirmed is None or not initial <= slot.confirmed <= furthest:
        raise LogGone(
            f"the slot was moved from {initial} to {slot.confirmed}: another program reads from it",
            where=where,
            hint=f"do not use or drop slots named {slots.PREFIX}…, and trigger a new run",
        )
    slots.warn_if_short(slot)


HISTORY: tuple[Check[RunContext], ...] = (
    Check(
        "postgres.still-primary",
        "The server is still a primary.",
        _WHEN,
        "point the connection to the primary that the run began on, or trigger a new run",
        _primary,
        (_EACH_SESSION,),
    ),
    Check(
        "postgres.same-server",
        "The server and its timeline are the same as when the run began, and the server has lost no log.",
        _WHEN,
        "point the connection back to the server on which the run began, or trigger a new run on this one",
        _same_server,
        (_EACH_SESSION, _SINCE_A_COPY),
    ),
    Check(
        "postgres.slot",
        "The run's slots exist, still have their log, and were not moved from the positions at which they were "
        "created. The run itself moves its slot only up to the end of the pieces of the log that it has recorded.",
        _WHEN,
        "do not use or drop slots named cdc_…, let the server keep more log, and trigger a new run",
        _slots,
        (_EACH_SESSION, Raised(Moment.LOG_READ, "sources.postgres.log.segments:check_slot")),
    ),
    Check(
        "postgres.publication-untouched",
        "The publication was not altered during the run, not even temporarily.",
        _WHEN,
        "do not alter the publication during a run; trigger a new run",
        _publications,
        (Raised(Moment.POSITION_FIXED, "sources.postgres.steps.snapshot:_Fixing._read_after"),),
    ),
)
