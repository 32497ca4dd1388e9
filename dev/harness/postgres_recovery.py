"""Rebuilds a PostgreSQL server at any LSN by PostgreSQL's own recovery: a base copy, and a replay of the WAL.

This is physical replication, so it shares nothing with logical decoding, logical slots or snapshots. The result has a
transaction if and only if its commit record begins before the LSN
(https://www.postgresql.org/docs/current/runtime-config-wal.html, ``recovery_target_lsn``, not inclusive).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from harness.errors import HarnessError
from harness.postgres_server import SERVER_UID, SUPERUSER, PostgresServer

SLOT = "harness_recovery"
WAIT_SECONDS = 120
_NOT_COPIED = shutil.ignore_patterns("pg_wal", "postmaster.*", "pg_replslot", "server.json")


def _copy_if_there(source: str, to: str) -> None:
    """Copy a file, unless the server has removed it meanwhile. The log of the backup has the removal, too."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, to)


class PostgresRecovery:
    """A second server in ``directory``, made from a copy of the current state of ``primary``, which stays in use.

    ``advance_to`` brings the server to an LSN. It may be called repeatedly with increasing LSNs. Use this class as a
    context manager.

    :param archive: the folder in which the primary archives its WAL; None: it archives none. With it, the primary may
        remove WAL that is not replayed.
    """

    def __init__(self, primary: PostgresServer, directory: Path, archive: Path | None = None) -> None:
        self._primary = primary
        self._archive = archive
        self._options: dict[str, str] = {}
        self._directory = directory
        self._server: PostgresServer | None = None
        with primary.connect() as connection:
            # The slot keeps the WAL until it is replayed.
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (SLOT,))
            connection.execute("SELECT pg_backup_start('harness', fast => true)")
            shutil.copytree(primary.data, directory / "data", ignore=_NOT_COPIED, copy_function=_copy_if_there)
            stopped = connection.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        assert stopped is not None
        data = directory / "data"
        (data / "backup_label").write_text(stopped[0])
        (data / "standby.signal").touch()
        for folder in ("pg_wal", "pg_replslot"):
            (data / folder).mkdir()
        data.chmod(0o700)
        _give_to_server(data)

    def advance_to(self, lsn: str) -> None:
        """Replay the WAL up to ``lsn``.

        :raises HarnessError: recovery did not reach the LSN.
        """
        if self._server is not None:
            self._server.stop()
        # Recovery stops at the first record from this LSN on, so write one.
        self._primary.query("SELECT pg_switch_wal()")
        archived = {"wal_retrieve_retry_interval": "100ms", "restore_command": f"cp '{self._archive}/%f' '%p'"}
        self._options = {
            **(archived if self._archive else {}),
            "recovery_target_lsn": lsn,
            "recovery_target_inclusive": "off",
            "recovery_target_action": "pause",
            "recovery_target_timeline": "current",
            "primary_slot_name": SLOT,
            "primary_conninfo": f"host={self._primary.host} port={self._primary.port} user={SUPERUSER}",
        }
        self._server = PostgresServer.start(self._directory, options=self._options)
        deadline = time.monotonic() + WAIT_SECONDS
        while self._server.query("SELECT pg_get_wal_replay_pause_state()") != [("paused",)]:
            if time.monotonic() > deadline:
                raise HarnessError(f"recovery did not reach {lsn} within {WAIT_SECONDS} s; see {self._server.log}")
            time.sleep(0.05)

    @contextmanager
    def promoted(self, directory: Path) -> Iterator[PostgresServer]:
        """Start a copy of the recovered server in ``directory`` that has ended its recovery at the same LSN.

        A recovery that pauses while a transaction is open keeps the locks of this transaction. The copy has rolled the
        transaction back. This needs an archive.
        """
        if self._server is None:
            raise HarnessError("the recovered server has not been started: call advance_to first")
        self._server.stop()
        shutil.copytree(self._directory / "data", directory / "data")
        (directory / "data" / "standby.signal").rename(directory / "data" / "recovery.signal")
        _give_to_server(directory / "data")
        options = self._options | {"recovery_target_action": "promote"}
        del options["primary_slot_name"], options["primary_conninfo"]
        try:
            with PostgresServer.start(directory, options=options) as server:
                deadline = time.monotonic() + WAIT_SECONDS
                while server.query("SELECT pg_is_in_recovery()") != [(False,)]:
                    if time.monotonic() > deadline:
                        raise HarnessError(f"the recovery did not end within {WAIT_SECONDS} s; see {server.log}")
                    time.sleep(0.05)
                yield server
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            self._server = PostgresServer.start(self._directory, options=self._options)

    def connect(self, **arguments: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection to the recovered server, which is read-only."""
        if self._server is None:
            raise HarnessError("the recovered server has not been started: call advance_to first")
        return self._server.connect(**arguments)

    def close(self) -> None:
        """Stop the server, delete its data, and drop the slot on the primary."""
        if self._server is not None:
            self._server.stop()
        # The primary may not have noticed the end of the server yet.
        end = "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots WHERE slot_name = %s AND active"
        self._primary.query(end, (SLOT,))
        self._primary.query("SELECT pg_drop_replication_slot(%s)", (SLOT,))
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _give_to_server(data: Path) -> None:
    if os.geteuid() == 0:
        for path in [data, *data.rglob("*")]:
            os.chown(path, SERVER_UID, SERVER_UID, follow_symlinks=False)
