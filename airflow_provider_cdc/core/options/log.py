"""The options for the log that a run needs. `core.options.run.StepOptions` includes them."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import one_of, option

AUTO, OFF = "auto", "off"
STOP, WARN = "stop", "warn"


@dataclass(frozen=True)
class LogOptions:
    """How a run reads the log, and what it does if the source will not keep the log for long enough."""

    spool: str = option(
        AUTO,
        accepts=one_of((AUTO, OFF), ("auto: read the log beside the tables", "off: read the log at the end")),
        help="Whether the run reads the log in pieces while it reads the tables. `auto`: it does, if it takes longer "
        "than 30 seconds and if the way in which the tables are read allows it. The source then need not keep the log "
        "until the reads end, and the run ends sooner. `off`: the run reads the log after the tables.",
        example="auto or off",
    )
    on_short_log: str = option(
        STOP,
        accepts=one_of((STOP, WARN), ("stop: stop the run early", "warn: only warn, until the log is gone")),
        help="What a run does if the source will remove the log before the run has read it, according to the source's "
        "settings, the growth of the log and the progress of the run. The run warns in any case. `stop` stops the run "
        "if the log would be gone in less than a third of the time that the run still needs, and 30 minutes of "
        "warnings have not changed this. `warn` lets the run go on until the log is gone.",
        example="stop or warn",
    )
