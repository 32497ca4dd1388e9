"""The command that controls a run in progress: ``python -m airflow_provider_cdc.control``. It needs access to the run's
folder, but not to Airflow."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Sequence

from airflow_provider_cdc.core.control import acts as events
from airflow_provider_cdc.core.control.acts import LIMIT, VERBS, Acts, act_on
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import CdcError

SHOW = "show"


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command, and return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        folder = Storage(given.run_uri)
        if given.act == SHOW:
            _show(folder)
            return 0
        act = act_on(
            folder,
            given.act,
            given.by,
            given.reason,
            max_reads=given.max_reads,
            max_rows_per_second=given.max_rows_per_second,
            governor=dict(given.threshold) or None,
        )
    except CdcError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{act.verb}{f' ({act.limits})' if act.limits else ''}: recorded. The run follows within seconds.")
    return 0


def _show(folder: Storage) -> None:
    for act in Acts(folder).read():
        print(f"{act.at}  {act.verb}{f' ({act.limits})' if act.verb == LIMIT else ''}, by {act}")
    log = events.read(folder)
    for event in log.events:
        print(f"{event.at}  {event.step}: {event.what}: {event.why}")
    print(f"paused for {duration(log.paused_seconds)}, slowed by the governor for {duration(log.slowed_seconds)}")


def _threshold(text: str) -> tuple[str, float]:
    signal, equals, number = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not SIGNAL=NUMBER")
    return signal, float(number)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user without a name.
        return f"user {os.getuid()}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_cdc.control",
        description="Pause, resume or stop a run in progress, change its limits, or show what was done.",
    )
    parser.add_argument("act", choices=[*VERBS, SHOW])
    parser.add_argument("run_uri", help="the folder of the run: the XCom run_uri of its task lock_and_record")
    parser.add_argument("--reason", default="", help="for the log and the report of the run")
    parser.add_argument("--by", default=_user(), help="who acts; by default the user of this machine")
    parser.add_argument("--max-reads", type=int, help="with limit: concurrent reads; 0: no limit")
    parser.add_argument("--max-rows-per-second", type=int, help="with limit: rows per second; 0: no limit")
    parser.add_argument(
        "--threshold",
        type=_threshold,
        action="append",
        default=[],
        metavar="SIGNAL=NUMBER",
        help="with limit: another threshold of a signal that the run watches; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
