"""The command that removes what ended runs left behind: ``python -m airflow_provider_cdc.clean --help``.

The command reads Airflow's connections, so it runs where Airflow is installed. With --airflow-url, it asks this Airflow
for the state of DAG runs, with the token in the environment variable CDC_AIRFLOW_TOKEN. Otherwise, it takes only those
unpublished runs for ended that have written nothing for 7 days.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import MISSING

from airflow_provider_cdc.core.options.declare import declared_in
from airflow_provider_cdc.core.options.lake import CleanOptions
from airflow_provider_cdc.errors import CdcError


def main(arguments: Sequence[str] | None = None) -> int:
    """Clean up, print the report, and return the exit status."""
    parser = ArgumentParser("python -m airflow_provider_cdc.clean", description=__doc__)
    for one in declared_in(CleanOptions):
        flag = f"--{one.argument.replace('_', '-')}"
        if isinstance(one.default, bool):
            parser.add_argument(flag, action="store_true", help=one.help)
        elif one.default is MISSING:
            parser.add_argument(flag, required=True, help=one.help)
        else:
            parser.add_argument(flag, type=type(one.default), default=one.default, help=one.help)
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    parser.add_argument("--airflow-url", default="", help="The Airflow that made the runs, such as https://host:8080.")
    values = vars(parser.parse_args(arguments))
    as_json, airflow_url = values.pop("json"), values.pop("airflow_url")
    from airflow_provider_cdc.core.liveness import no_airflow
    from airflow_provider_cdc.hooks.storage import storage_access
    from airflow_provider_cdc.operators.clean import checked_clean, cleaner_of
    from airflow_provider_cdc.operators.planning.dag_run_state import states_by_api

    try:
        options = checked_clean(values)
        state_of = states_by_api(airflow_url) if airflow_url else no_airflow
        with storage_access(options.storage_conn_id):
            report = cleaner_of(options, state_of).clean(dry_run=options.dry_run)
    except CdcError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report.data(), indent=2) if as_json else "\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
