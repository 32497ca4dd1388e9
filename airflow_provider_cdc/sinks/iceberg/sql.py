"""A SQL catalog whose sessions never share a connection. It waits for the locks of other programs for a limited time.

After a failed COMMIT, SQLAlchemy returns the connection to its pool without a ROLLBACK. If SQLite is the database, the
transaction is then still open: the next session of the same pool sees its uncommitted changes, and may commit them. So
this catalog has no pool. Each session opens a connection and closes it at its end, and databases roll back the open
transaction of a connection that is closed. So a session reads only what was committed, whatever happened before.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
from pathlib import Path

from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import URI
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, OutputStream, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from airflow_provider_cdc.core.storage import durable

# Iceberg's metadata files on local disks, written so that they survive a crash of the machine.
#
# A catalog in a database survives a crash once its transaction is committed. PyIceberg does not sync the files that the
# catalog then names: metadata files, manifest lists and manifests. Without this module, a table could lose them, and
# with them all its copies.


def load_durable_io(properties: Properties, location: str | None) -> FileIO:
    """Return PyIceberg's access to files. Files that it writes on a local disk are durable once they are closed."""
    loaded = load_file_io(properties, location)
    return _DurableIO(properties) if type(loaded) is PyArrowFileIO else loaded


class _DurableIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        if isinstance(file._filesystem, LocalFileSystem):
            return _DurableFile(file.location, file._path, file._filesystem, file._buffer_size)
        return file


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        durable.make_folder(self._filesystem, posixpath.dirname(self._path))
        return _SyncedStream(Path(self._path).open("wb" if overwrite else "xb", buffering=0), self._filesystem)


class _SyncedStream(io.BufferedWriter):
    def __init__(self, raw: io.FileIO, filesystem: LocalFileSystem) -> None:
        super().__init__(raw)
        self._filesystem = filesystem

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        # The name of the file is durable only after an fsync of its folder.
        durable.sync(self._filesystem, posixpath.dirname(str(self.name)))


LOCK_SECONDS = 60
"""How long a statement waits for a lock of another program. The run sends a commit several times, so it waits for
minutes in all. In between, it releases its own locks, so that readers of a SQLite catalog can go on."""

CONNECT_SECONDS = 10
"""How long to wait until PostgreSQL has accepted a connection. Each session opens one, so a server that accepts
connections and never answers does not hang a run."""
_LIBPQ = ("psycopg", "psycopg2")
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6
_LOCK_NOT_AVAILABLE = "55P03"
# Drivers report refusals of a login without an SQLSTATE.
_REFUSED = re.compile(r"authentication failed|no password supplied|does not exist|pg_hba\.conf|Access denied")


class SqlCatalogWithoutPool(SqlCatalog):
    """PyIceberg's SQL catalog, with a connection of its own for each session, and with limits on waiting for locks."""

    def _init_catalog(self) -> None:
        # PyIceberg calls this method after it has created its engine, and before it uses the engine.
        self.engine = _without_pool(self.properties[URI], self.engine)
        super()._init_catalog()

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return load_durable_io({**self.properties, **properties}, location)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        if current_table is not None and staged.metadata.last_updated_ms < current_table.metadata.last_updated_ms:
            # The clock is behind that of an earlier writer. Readers in Java refuse tables whose times go back.
            times = {"last_updated_ms": current_table.metadata.last_updated_ms}
            staged.metadata = staged.metadata.model_copy(update=times)
        return staged


def _without_pool(uri: str, engine: Engine) -> Engine:
    url = make_url(uri)
    is_sqlite = url.get_backend_name() == "sqlite"
    # A time-out in the URI takes precedence.
    limits: dict[str, float] = {"timeout": LOCK_SECONDS} if is_sqlite else {}
    if url.get_driver_name() in _LIBPQ:
        # The last two have the kernel end a connection whose peer is gone, after two minutes.
        limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 120_000, "keepalives_idle": 60}
    limits = {name: limit for name, limit in limits.items() if name not in url.query}
    own = create_engine(url, poolclass=NullPool, echo=engine.echo, connect_args=limits)
    if url.get_backend_name() == "postgresql":
        event.listen(own, "begin", _limit_locks)
    return own


def _limit_locks(connection: Connection) -> None:
    # Only for this transaction, because a pooler between this program and the server may give the session to others.
    connection.exec_driver_sql(
        f"SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', true) WHERE current_setting('lock_timeout') = '0'"
    )


def is_locked(error: BaseException) -> bool:
    """Return whether a database reported that another session holds a lock."""
    driver_error = error.orig if isinstance(error, DBAPIError) else None
    # SQLite's extended codes have the code in their lowest byte.
    code = getattr(driver_error, "sqlite_errorcode", 0) & 0xFF
    state = getattr(driver_error, "sqlstate", None) or getattr(driver_error, "pgcode", None)
    return code in (_SQLITE_BUSY, _SQLITE_LOCKED) or state == _LOCK_NOT_AVAILABLE


def is_unreachable(error: BaseException) -> bool:
    """Return whether a database could not be reached or failed, so that a retry may help. A server that knows neither
    the account nor the database has answered."""
    return isinstance(error, OperationalError) and not _REFUSED.search(str(error.orig))
