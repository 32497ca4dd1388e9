"""A command that compares a MySQL server with what this package knows about its version, and checks whether copies can
be made: ``python -m airflow_provider_cdc.check_server --help``. Include its output in a bug report.

It writes nothing to the server, and takes no locks. The password comes from the environment variable
CDC_CHECK_PASSWORD, or is asked for. Instead of a host, it takes an Airflow connection (--source-conn-id), which may be
a URI in the environment variable AIRFLOW_CONN_….

The exit status is 0 if the server is as expected, 3 if it differs from what is known, and 4 if copies cannot be made.
It is 1 if a retry may help, and 2 if the command cannot work, for example because the version is not supported.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc import __version__
from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError, Problem, TerminalError
from airflow_provider_cdc.sources.api.source import ConnectionSettings

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.mysql.steps.server_report import Compared, ServerReport

AS_EXPECTED, TRANSIENT, TERMINAL, DIFFERS, NOT_COPYABLE = 0, 1, 2, 3, 4
PASSWORD = "CDC_CHECK_PASSWORD"
_TLS = ("mode", "ca", "cert", "key", "server_key")
_CHUNK_ROWS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a server as the arguments say, print the report, and return the exit status."""
    parser = _parser()
    given = parser.parse_intermixed_args(arguments)
    if bool(given.host) == bool(given.source_conn_id):
        parser.error("give either HOST or --source-conn-id")
    try:
        settings = _settings(given)
        found, problems, notes = _checked(settings, given.table)
    except CdcError as error:
        print(f"check_server failed: {type(error).__name__}: {error}", file=sys.stderr)
        return TERMINAL if isinstance(error, TerminalError) else TRANSIENT
    if given.json:
        print(json.dumps(_data(found, problems, notes), indent=2))
    else:
        print("\n".join(_lines(found, problems, notes)))
    if found.differences:
        return DIFFERS
    return NOT_COPYABLE if problems else AS_EXPECTED


def _settings(given: argparse.Namespace) -> ConnectionSettings:
    if given.source_conn_id:
        # Airflow is slow to import, and not needed for a host.
        from airflow_provider_cdc.hooks import open_hook

        settings = open_hook(given.source_conn_id).settings()
        if settings.kind != "mysql":
            raise ConfigurationError(
                f"the connection leads to a {settings.kind} server",
                where="--source-conn-id",
                hint="this command knows MySQL only; test other connections in Airflow, or with the task `preflight`",
            )
        return settings
    password = os.environ.get(PASSWORD)
    if password is None:
        password = getpass.getpass(f"Password of {given.user}: ") if sys.stdin.isatty() else ""
    tls = {name: setting for name in _TLS if (setting := getattr(given, f"tls_{name}"))}
    if given.tls_trusted_network:
        tls["trusted_network"] = "true"
    return ConnectionSettings("mysql", given.host, given.port, given.user, password, tls=tls)


def _checked(
    settings: ConnectionSettings, patterns: Sequence[str]
) -> tuple[ServerReport, list[Problem], dict[str, str]]:
    """Return the report, the problems that preflight would find, and notes about what a run would do."""
    from airflow_provider_cdc.core.options.run import StepOptions
    from airflow_provider_cdc.sources.api.registry import open_source
    from airflow_provider_cdc.sources.mysql.steps.server_report import report

    found, source = report(settings), open_source(settings)
    problems = source.check_server()
    runway = source.runway()
    kept = runway.why if runway.seconds is None else f"for {runway.seconds / 3600:,.0f} hours ({runway.why})"
    notes = {"the log is kept": kept, "after a failover": source.after_failover(StepOptions())}
    if patterns and not problems:
        try:
            plans = source.preflight(patterns)
            problems = source.sample(plans)
            chunks = sum(
                len(source.plan_chunks(table, _CHUNK_ROWS))
                for table, plan in zip(source.tables_of(plans), plans, strict=True)
                if plan.consistency == "watermark"
            )
            notes["tables"] = f"{len(plans)}, of which those with a key have {chunks} chunks"
        except PreflightError as error:
            problems = list(error.problems)
    return found, problems, notes


def _outcome(one: Compared) -> str:
    words = {True: "there", False: "missing", None: "unknown"}
    return f"expected {words[one.expected]}, found {words[one.found]}"


def _lines(found: ServerReport, problems: Sequence[Problem], notes: dict[str, str]) -> Iterator[str]:
    tested = [one for one in found.compared if one.found is not None]
    yield f"airflow-provider-cdc {__version__}, check_server"
    yield f"server: {found.version}, {found.comment}, {found.service}"
    yield f"log: {found.log}"
    for name, text in notes.items():
        yield f"{name}: {text}"
    yield f"tested: {len(tested)} of {len(found.compared)} entries of the table of versions"
    yield f"differences: {len(found.differences) or 'none'}"
    for one in found.differences:
        feature = one.feature
        yield f"  {feature.subject.value} {feature.name} (versions: {feature.versions}): {_outcome(one)}. {one.answer}"
        yield f"    used to {feature.use}; see {feature.manual}"
    denied = [one for one in found.compared if one.found is None and (one.feature.probe or one.feature.privilege)]
    if denied:
        yield "not tested:"
    for one in denied:
        needs = f" (GRANT {one.feature.privilege})" if one.feature.privilege else ""
        yield f"  {one.feature.subject.value} {one.feature.name}: {one.answer}{needs}"
    yield f"problems: {len(problems) or 'none'}"
    for problem in problems:
        yield f"  {problem}"
    for warning in found.warnings:
        yield f"warning: {warning}"
    yield "settings:"
    for name, setting in found.settings.items():
        yield f"  {name} = {setting}"


def _data(found: ServerReport, problems: Sequence[Problem], notes: dict[str, str]) -> dict[str, Any]:
    return {
        "airflow_provider_cdc": __version__,
        "server": {"version": found.version, "comment": found.comment, "service": found.service, "log": found.log},
        "notes": notes,
        "entries": [
            {
                "subject": one.feature.subject.value,
                "name": one.feature.name,
                "versions": one.feature.versions,
                "manual": one.feature.manual,
                "privilege": one.feature.privilege,
                "expected": one.expected,
                "found": one.found,
                "differs": one.differs,
                "answer": one.answer,
            }
            for one in found.compared
        ],
        "problems": [asdict(problem) for problem in problems],
        "warnings": list(found.warnings),
        "settings": dict(found.settings),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_cdc.check_server", description=__doc__)
    add = parser.add_argument
    add("host", nargs="?", default="", metavar="HOST", help="the server")
    add("--port", type=int, default=3306, help="default: %(default)s")
    add("--user", default="root", help="the user that copies; default: %(default)s")
    add("--source-conn-id", default="", help="instead of HOST: an Airflow connection (also AIRFLOW_CONN_…)")
    add("--table", action="append", default=[], metavar="PATTERN", help="also check these tables; may be repeated")
    add("--json", action="store_true", help="print the report as JSON")
    for name in _TLS:
        flag = f"--tls-{name.replace('_', '-')}"
        add(flag, default="", help=f"as the field tls_{name} of a connection of the type cdc_mysql")
    add("--tls-trusted-network", action="store_true", help="as the field tls_trusted_network")
    return parser


if __name__ == "__main__":
    sys.exit(main())
