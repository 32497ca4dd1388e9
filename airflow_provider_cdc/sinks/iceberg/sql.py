"""A SQL catalog whose sessions never share a connection. It waits for the locks of other programs for a limited time.

After a failed COMMIT, SQLAlchemy returns the connection to its pool without a ROLLBACK. If SQLite is the database, the
transaction is then still open: the next session of the same pool sees its uncommitted changes, and may commit them. So
this catalog has no pool. Each session opens a connection and closes it at its end, and databases roll back the open
transaction of a connection that is closed. So a session reads only what was committed, whatever happened before.
"""

from __future__ import annotations

from pyiceberg.catalog import URI
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

LOCK_SECONDS = 60
"""How long a statement waits for a lock of another program. The run sends a commit several times, so it waits for
minutes in all. In between, it releases its own locks, so that readers of a SQLite catalog can go on."""

_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6
_LOCK_NOT_AVAILABLE = "55P03"


class SqlCatalogWithoutPool(SqlCatalog):
    """PyIceberg's SQL catalog, with a connection of its own for each session, and with limits on waiting for locks."""

    def _init_catalog(self) -> None:
        # PyIceberg calls this method after it has created its engine, and before it uses the engine.
        self.engine = _without_pool(self.properties[URI], self.engine)
        super()._init_catalog()


def _without_pool(uri: str, engine: Engine) -> Engine:
    url = make_url(uri)
    is_sqlite = url.get_backend_name() == "sqlite"
    # A time-out in the URI takes precedence.
    limits = {"timeout": LOCK_SECONDS} if is_sqlite and "timeout" not in url.query else {}
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
