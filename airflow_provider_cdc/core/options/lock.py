"""The options of the short lock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import COUNT, FLAG, SECONDS, WHOLE_SECONDS, option


@dataclass(frozen=True)
class LockPolicy:
    """Settings for the short lock. Each try waits at most ``wait_seconds`` for the lock. After a failed try, the
    sessions that wait behind it go first.

    ``through_read`` holds the lock until the table is read, because some servers' read views need that.
    ``slot_wait_seconds`` is how long slot creation may wait for open write transactions; it blocks no other session.
    """

    wait_seconds: int = option(
        5,
        name="lock_wait_seconds",
        accepts=WHOLE_SECONDS,
        help="Seconds for which one attempt to take a lock may block other sessions.",
        example="a number such as 5",
    )
    tries: int = option(
        12,
        name="lock_tries",
        accepts=COUNT,
        help="Number of times that a run tries to take a lock.",
        example="a number such as 12",
    )
    pause_seconds: float = option(
        2.0,
        name="lock_pause_seconds",
        accepts=SECONDS,
        help="Seconds between two tries.",
        example="a number such as 2",
    )
    through_read: bool = option(
        False,
        name="lock_through_read",
        accepts=FLAG,
        feature="lock_through_read",
        help="Hold the lock until the table is read. Some servers need this for a consistent read view.",
        example="true or false",
    )
    slot_wait_seconds: int = option(
        600,
        accepts=WHOLE_SECONDS,
        feature="slots",
        help="Seconds to wait for open write transactions at slot creation. The wait does not block other sessions.",
        example="a number such as 600",
    )
