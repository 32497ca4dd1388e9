"""`dev/servers`: private servers that keep running between commands."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from harness.cache import cache_directory
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from harness.server_process import ServerProcess

UNDO = "dev/servers down (add --purge to delete the data too)"


KINDS: dict[str, type[ServerProcess]] = {"mysql": MysqlServer, "postgres": PostgresServer}


def directory_of(kind: str) -> Path:
    """Return the folder of the server of this kind."""
    return cache_directory() / "servers" / kind


def up(kind: str, port: int | None = None) -> ServerProcess:
    """Return the running server of this kind. Start it if necessary.

    :param port: the port of a server that is started; None: any free port.
    """
    directory = directory_of(kind)
    server = KINDS[kind].attach(directory)
    if server is None:
        print(f"{kind}: starting in {directory}")
        directory.mkdir(parents=True, exist_ok=True)
        server = KINDS[kind].start(directory, port=port, detached=True)
    return server


def down(kind: str, *, purge: bool) -> None:
    """Stop the server of this kind if it runs. `purge` deletes its data."""
    directory = directory_of(kind)
    server = KINDS[kind].attach(directory)
    if server is not None:
        server.stop()
    print(f"{kind}: {'stopped' if server else 'was not running'}")
    if purge and directory.exists():
        shutil.rmtree(directory)
        print(f"{kind}: deleted {directory}")


def status(kind: str) -> bool:
    """Print the URL of the server of this kind. Return whether it runs."""
    server = KINDS[kind].attach(directory_of(kind))
    print(f"{kind}: {server.url if server else 'down (dev/servers up starts it)'}")
    return server is not None


def main() -> int:
    """Execute the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="dev/servers", description=__doc__, epilog=f"Undo: {UNDO}.")
    parser.add_argument("action", choices=["up", "down", "status"])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument("--purge", action="store_true", help="with down: delete the data")
    arguments = parser.parse_args()
    kinds = arguments.kinds or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such server: {', '.join(sorted(unknown))} (there are: {', '.join(KINDS)})")
    if arguments.action == "up":
        for kind in kinds:
            print(f"{kind}: {up(kind).url}")
        print(f"undo: {UNDO}")
        return 0
    if arguments.action == "down":
        for kind in kinds:
            down(kind, purge=arguments.purge)
        return 0
    running = [status(kind) for kind in kinds]
    return 0 if all(running) else 1


if __name__ == "__main__":
    raise SystemExit(main())
