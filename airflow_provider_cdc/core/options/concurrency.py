"""The options for runs that share tables of a target."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import SECONDS, one_of, option

ALLOW, WAIT, REFUSE = "allow", "wait", "refuse"


@dataclass(frozen=True)
class ConcurrencyOptions:
    """What a run does if another run of the same tables and the same target is under way."""

    concurrent_runs: str = option(
        ALLOW,
        accepts=one_of(
            (ALLOW, WAIT, REFUSE),
            (
                "allow: run beside it",
                "wait: wait until it has ended",
                "refuse: stop, and name it",
            ),
        ),
        help="What `preflight` does if another run of the same `target` and `scratch` copies some of the same tables, "
        "and is under way. `allow`: the run works beside it. Both copies are exact, and the one with the later "
        "position becomes the latest one. `wait`: `preflight` waits until the other run is published or has failed. "
        "`refuse`: the run stops, and names the other run. A run that died holds up no other run.",
        example="allow, wait or refuse",
    )
    concurrent_wait_seconds: float = option(
        0.0,
        accepts=SECONDS,
        help="With `concurrent_runs` = `wait`: seconds after which the run stops waiting, and is refused. 0: it waits "
        "for as long as the `execution_timeout` of `preflight` allows.",
        example="a number such as 3600",
    )
