"""The command line of `dev/bench`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from harness.bench.server import bench_directory
from harness.errors import HarnessError

BENCHES = {
    "snapshot": "a table to Parquet, compared with the peers",
    "postgres": "PostgreSQL: a table to Parquet, and a slot to net changes, compared with the peers",
    "tls": "PostgreSQL: one session, plain and over TLS",
    "many-tables": "hundreds of small tables to Parquet, on both databases, compared with a loop over the tables",
    "delta": "the log to net changes, compared with mysql-replication",
    "as-of": "a copy as of the past, compared with a current copy and with reading the log in between",
    "postgres-as-of": "PostgreSQL: a copy as of the past, compared in the same way",
    "refresh": "a copy that is rolled forward, compared with a full copy, by the number of changes",
    "lake": "copies as Iceberg tables, compared with plain Parquet, and with rolling them forward",
    "dag": "a small run in Airflow, compared with three empty Spark applications",
    "consolidate": "rewind and publish, by the number of touched keys",
    "source-impact": "the effect of a snapshot on writers, compared with dumps",
    "postgres-source-impact": "PostgreSQL: the effect of a copy on writers, compared with pg_dump",
    "truth": "the contents of copies under writes, compared with the source's log, on both databases",
    "tpcc": "nightly copies of the TPC-C tables, compared with a dump and with a full copy",
    "spool": "the changes of a run after its last read, with and without the spool, on both databases",
    "resume": "the share of its reading that a run keeps if it is killed, on both databases",
    "codecs": "the size of copies with each codec, and the CPU time of writing and reading them",
    "memory": "the peak memory of each Spark worker, by the number of rows",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev/bench", description=__doc__)
    names = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for name, what in BENCHES.items():
        module = _module(name)
        one = names.add_parser(
            name, help=what, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        one.add_argument("--rows", type=_positive, metavar="N", help="rows of the table (default: %(default)s)")
        one.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
        one.add_argument(
            "--data",
            type=Path,
            metavar="DIRECTORY",
            default=bench_directory(),
            help="folder for the server's data and the filled tables, kept for the next bench (default: %(default)s)",
        )
        module.add_arguments(one)
    arguments = parser.parse_args()
    data: Path = arguments.data.absolute()
    print(f"bench {arguments.bench}: {BENCHES[arguments.bench]}")
    try:
        report = _module(arguments.bench).run(arguments, data)
    except HarnessError as error:
        raise SystemExit(f"bench: {error}") from None
    if arguments.json:
        report.write(arguments.json)
        print(f"\nwritten: {arguments.json}")
    print(f"\nNothing is left running. The tables stay for the next bench; undo: rm -r {data}")


def _module(name: str) -> Any:
    return importlib.import_module(f"harness.bench.{name.replace('-', '_')}")


def _positive(text: str) -> int:
    value = int(text.replace("_", "").replace(",", ""))
    if value < 1000:
        raise argparse.ArgumentTypeError("at least 1000")
    return value


if __name__ == "__main__":
    main()
