"""Sessions. Each session pins every variable that could change the result of a read, and maps the driver's errors."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, SourceReplaced
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.dialect import OLDEST_VERSION, Version, has_variable, values_before
from airflow_provider_cdc.sources.mysql.server.driver import (
    SERVER_KEY,
    GuardedConnection,
    connect_error,
    mapped_errors,
    statement_error,
)
from airflow_provider_cdc.sources.session import (
    DISABLED,
    VERIFY_CA,
    VERIFY_IDENTITY,
    Trust,
    trust_in,
    without_frames,
)
from airflow_provider_cdc.sources.tokens import logging_in

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts


# All session variables of the tested servers. Each variable is either pinned by every session or harmless. The reason
# is given for each variable.
#
# `session.connect` resets the session, sets the variables in `PINNED`, and reads them back. A test reads all session
# variables of the server, and fails if a variable is missing from the tables in this module. Variables that have only a
# global value are not listed here. ``checks.settings`` has the rules for the global variables on which exactness
# depends.
#
# Each reason must hold for every value that the variable can have on the server, and for every value that
# ``init_connect`` can set.


IDLE_SECONDS = "900"
"""The server ends a session after it has been idle for this number of seconds."""


@dataclass(frozen=True)
class Pinned:
    """A variable that every session sets.

    ``value``
        the value to set, as an SQL expression.
    ``why``
        the reason: the effect of other values of the variable.
    ``read``
        the SQL expression that reads the variable back. Empty: ``@@SESSION.`` and the name of the variable.
    ``shown``
        the expected result of ``read``, as text. Empty: ``value`` without its quotes.
    """

    value: str
    why: str
    read: str = ""
    shown: str = ""

    @property
    def expected(self) -> str | None:
        return None if self.value == "NULL" else self.shown or self.value.strip("'")


_CUT = "rows beyond the limit are omitted without an error"
_IDLE = (
    "a task that writes files, or waits for a core, may leave a session idle for a while, even between the rows of "
    "one statement; but a session whose task has ended must not keep a snapshot or a lock for hours"
)
_TEXT = "the server interprets statements as text of this character set"

PINNED: Mapping[str, Pinned] = {
    # Transactions
    "autocommit": Pinned("1", "without autocommit, a session reads everything in the read view of its first statement"),
    "completion_type": Pinned(
        "'NO_CHAIN'",
        "with CHAIN, each COMMIT or ROLLBACK begins a transaction, so the session continues in an old read view and "
        "rejects SET TRANSACTION. With RELEASE, these statements end the session",
    ),
    "transaction_isolation": Pinned("'REPEATABLE-READ'", "READ UNCOMMITTED shows changes that are not in the log"),
    "transaction_read_only": Pinned(
        "0", "in a read-only transaction, the server would reject some statements of a run"
    ),
    # Values
    "time_zone": Pinned("'+00:00'", "TIMESTAMP values are returned in this time zone"),
    "sql_mode": Pinned(
        "'ALLOW_INVALID_DATES'",
        "modes change the result of a SELECT (PAD_CHAR_TO_FULL_LENGTH) and the syntax of SQL (ANSI_QUOTES); a date "
        "that another session could store must be allowed as a bound",
    ),
    "character_set_client": Pinned("'utf8mb4'", _TEXT),
    "character_set_connection": Pinned("'utf8mb4'", _TEXT),
    "collation_connection": Pinned("'utf8mb4_0900_ai_ci'", "computed texts are compared with this collation"),
    "character_set_results": Pinned(
        "'utf8mb4'",
        "the server sends names and messages in this character set. Sessions that read rows set the variable to "
        "NULL, so that the server sends the stored bytes",
    ),
    "lc_messages": Pinned("'en_US'", "some errors can be distinguished only by their text"),
    # Rows
    "sql_select_limit": Pinned("18446744073709551615", _CUT),
    "sql_auto_is_null": Pinned("0", "IS NULL would also find the last inserted row"),
    "use_secondary_engine": Pinned("'OFF'", "a copy in a secondary engine lags behind the log"),
    "show_gipk_in_create_table_and_information_schema": Pinned(
        "1",
        "the log contains the column of a generated invisible primary key, so the catalog must show it",
    ),
    # Catalog and SHOW output
    "sql_quote_show_create": Pinned("1", "without quotes, the names in SHOW GRANTS are ambiguous"),
    "information_schema_stats_expiry": Pinned("0", "sizes of tables could be up to a year old"),
    # Execution plans: chunks are planned from EXPLAIN, and must be read as ranges of an index
    "optimizer_switch": Pinned(
        "'hypergraph_optimizer=off'",
        "the hypergraph optimizer has another EXPLAIN format. The other switches choose between plans that return the "
        "same rows",
        read="FIND_IN_SET('hypergraph_optimizer=off', @@SESSION.optimizer_switch) > 0",
        shown="1",
    ),
    "max_sort_length": Pinned("24576", "long texts would be sorted only by their first bytes"),
    "sort_buffer_size": Pinned("4194304", "the sort buffer must hold several texts of `max_sort_length`"),
    "eq_range_index_dive_limit": Pinned(
        "0",
        "the server would estimate the number of rows with a given value from statistics, instead of reading the "
        "index (index dives)",
    ),
    "range_optimizer_max_mem_size": Pinned("0", "each chunk would be read by a scan of the whole table"),
    "cte_max_recursion_depth": Pinned("1000", "a lower limit would end the recursive query that reads labels of enums"),
    # Limits and timeouts that apply to the statements of this package
    "sql_big_selects": Pinned("1", "max_join_size would prevent reads of large tables"),
    "sql_buffer_result": Pinned("0", "each chunk would be written to a temporary table before its first row is sent"),
    "max_execution_time": Pinned("0", "the server would end long reads"),
    "lock_wait_timeout": Pinned(
        "60", "while DDL waits for a lock (by default up to a year), all other sessions wait for the DDL"
    ),
    "net_write_timeout": Pinned(IDLE_SECONDS, _IDLE),
    "net_read_timeout": Pinned(IDLE_SECONDS, _IDLE),
    "wait_timeout": Pinned(IDLE_SECONDS, _IDLE),
}

_HARMLESS: Mapping[str, str] = {
    "The variable applies to rows that a session writes, and this package's sessions write none.": """
        auto_increment_increment auto_increment_offset binlog_direct_non_transactional_updates binlog_format
        binlog_row_image binlog_row_value_options binlog_rows_query_log_events binlog_transaction_compression
        binlog_transaction_compression_level_zstd bulk_insert_buffer_size enable_cascade_triggers foreign_key_checks
        innodb_lock_wait_timeout low_priority_updates max_delayed_threads max_insert_delayed_threads rbr_exec_mode
        sql_safe_updates unique_checks updatable_views_with_limit xa_detach_on_prepare
    """,
    "The variable applies to objects that a session creates or alters, and this package's sessions create none.": """
        default_storage_engine default_table_encryption default_tmp_storage_engine enable_secondary_engine_statistics
        explicit_defaults_for_timestamp external_table_secondary_storage_engine external_table_storage_engine
        histogram_generation_max_mem_size innodb_ddl_buffer_size innodb_ddl_threads innodb_ft_enable_stopword
        innodb_ft_user_stopword_table innodb_strict_mode innodb_tmpdir keep_files_on_create myisam_sort_buffer_size
        myisam_stats_method old_alter_table restrict_fk_on_non_standard_key sql_generate_invisible_primary_key
        sql_require_primary_key character_set_server collation_server character_set_database collation_database
    """,
    "The variable applies to statements that this package does not run (SHOW CREATE, SELECT … INTO, CALL, CREATE "
    "USER).": """
        character_set_filesystem generated_random_password_length max_sp_recursion_depth print_identified_with_as_hex
        select_into_buffer_size select_into_disk_sync select_into_disk_sync_delay show_create_table_verbosity
    """,
    "The variable changes functions that this package's statements do not use, and virtual columns that use them are "
    "rejected (``generated``).": """
        block_encryption_mode default_week_format div_precision_increment group_concat_max_len
        lc_time_names max_points_in_geometry windowing_use_high_precision
    """,
    "All comparisons and sorts of text name their collation.": "default_collation_for_utf8mb4",
    "The variable truncates sort keys. Sorts only propose the bounds of chunks; the order of an index is not "
    "affected.": """
        max_length_for_sort_data
    """,
    "The variable influences the plan, and every plan returns the same rows: key ranges name their index (FORCE "
    "INDEX).": """
        max_seeks_for_key optimizer_max_subgraph_pairs optimizer_prune_level optimizer_search_depth
        secondary_engine_cost_threshold
    """,
    "The variable limits the memory of a statement; the rest goes to disk.": """
        big_tables internal_tmp_mem_storage_engine join_buffer_size max_heap_table_size preload_buffer_size
        query_alloc_block_size query_prealloc_size range_alloc_block_size read_buffer_size read_rnd_buffer_size
        set_operations_buffer_size tmp_table_size transaction_alloc_block_size
        transaction_prealloc_size innodb_parallel_read_threads net_buffer_length connection_memory_chunk_size
    """,
    "The variable may end a statement or a session with an error, but never omits rows; the administrator decides.": """
        connection_memory_limit global_connection_memory_tracking max_user_connections
        parser_max_mem_size
    """,
    "No session can set it. A longer value is returned as NULL or as an empty text, with a warning, and the warning "
    "stops the read (``decode.rows``).": "max_allowed_packet",
    "Setting it requires a privilege. A read stops if the server lists fewer warnings than there were, because one of "
    "the others might report an omitted value (``decode.rows``).": "max_error_count",
    "max_join_size counts only while sql_big_selects is off.": "max_join_size",
    "The server copies it to wait_timeout when an interactive client logs in.": "interactive_timeout",
    "With autocommit, LOCK TABLES takes no InnoDB lock.": "innodb_table_locks",
    "The variable limits the retries of a write to the network.": "net_retry_count",
    "The variable makes sessions wait for other servers of a group; the session that holds a lock sets it "
    "(``snapshot``).": """
        group_replication_consistency
    """,
    "Every EXPLAIN of this package names its format, and none is JSON.": """
        end_markers_in_json explain_format explain_json_format_version
    """,
    "The variable renames instruments, threads and states. This package reads none.": "terminology_use_previous",
    "The variable applies only to clients that request the capability at login; the driver does not.": """
        resultset_metadata session_track_gtids session_track_schema session_track_state_change
        session_track_system_variables session_track_transaction_info
    """,
    "The variable applies to logs, traces and warnings.": """
        long_query_time min_examined_row_limit optimizer_trace optimizer_trace_features
        optimizer_trace_limit optimizer_trace_max_mem_size optimizer_trace_offset profiling profiling_history_size
        sql_log_off sql_notes sql_warnings
    """,
    "The variable has no global value, so the reset of the session gives it its default.": """
        gtid_next identity immediate_server_version insert_id last_insert_id original_commit_timestamp
        original_server_version pseudo_replica_mode pseudo_slave_mode pseudo_thread_id rand_seed1 rand_seed2
        require_row_format show_create_table_skip_secondary_engine sql_log_bin timestamp transaction_allow_batching
    """,
    "The variable is read-only.": "error_count external_user gtid_owned proxy_user statement_id warning_count",
}

HARMLESS: Mapping[str, str] = {name: why for why, names in _HARMLESS.items() for name in names.split()}
"""For each harmless variable, the reason why its value cannot change or truncate what the sessions of this package
read."""


def pinned(version: Version) -> dict[str, Pinned]:
    """Return the variables that a session sets on a server of this version."""
    return {name: pin for name, pin in PINNED.items() if has_variable(version, name)}


Connection: TypeAlias = GuardedConnection

_NOTHING = GtidSet()

CONNECT_SECONDS = 15
READ_SECONDS = 900
"""The read timeout in seconds. If the server sends no data for this time, the session counts as lost. No statement of
this package needs more time before the server sends data."""


@dataclass(frozen=True)
class RunSettings(ConnectionSettings):
    """Connection settings with which a session accepts only the server on which a run began. This is needed because
    several servers may share an address.

    ``position`` is the position that the server must have executed.
    """

    server_uuid: str = ""
    hostname: str = ""
    position: GtidSet = field(default=_NOTHING, repr=False)

    @classmethod
    def of(cls, settings: ConnectionSettings, facts: MysqlFacts, position: GtidSet = _NOTHING) -> RunSettings:
        """Return ``settings`` together with the server on which a run began."""
        plain = {each.name: getattr(settings, each.name) for each in fields(ConnectionSettings)}
        if settings.log_server is not None and facts.log_server is not None:
            plain["log_server"] = cls.of(settings.log_server, facts.log_server)
        return cls(**plain, server_uuid=facts.server_uuid, hostname=facts.hostname or "", position=position)


def connect(settings: ConnectionSettings, *, reading: bool = False, **overrides: Any) -> Connection:
    """Open a session with autocommit and the time zone UTC. The session does not inherit any setting that could change
    or truncate a result.

    The session is reset first. Then the values of `PINNED` are set and read back.

    :param reading: whether the server sends text in the character set of the column. These are the same bytes as in the
        log.
    :param overrides: arguments of ``pymysql.connect`` that replace the default ones.
    :raises SourceUnavailable: the server does not answer, or does not allow a further session.
    :raises ConfigurationError: the host is unknown, the server rejects TLS or the credentials, the server is too old,
        or a variable does not keep the value that the session set.
    :raises SourceReplaced: with `RunSettings`, another server answers, or the server has not executed ``position``.
    """
    if not settings.user:
        # Without a user, PyMySQL would use the name of the operating system user.
        raise ConfigurationError("the connection names no user", where=settings.address, hint="set its login")
    connection = logging_in(settings, lambda: _log_in(settings, overrides))
    try:
        with mapped_errors(settings.address):
            _check_version(settings, connection)
            connection.keep_alive()
            _pin(settings, connection, reading=reading)
            if isinstance(settings, RunSettings):
                _check_server(settings, connection)
        connection.logged_in(overrides.get("read_timeout", READ_SECONDS), READ_SECONDS)
    except BaseException:
        end(connection)
        raise
    return connection


def _pin(settings: ConnectionSettings, connection: Connection, *, reading: bool) -> None:
    """Set the pinned variables in one statement, and read them back in another statement."""
    pins = pinned(server_version(connection))
    if reading:
        pins["character_set_results"] = replace(pins["character_set_results"], value="NULL")
    set_session(connection, {name: pin.value for name, pin in pins.items()})
    rows = query(connection, f"SELECT {', '.join(pin.read or f'@@SESSION.{name}' for name, pin in pins.items())}")
    values = dict(zip(pins, map(_text, rows[0]), strict=False)) if rows else {}
    wrong = [
        f"{name} is {values.get(name, 'unknown')}, not {pin.expected}"
        for name, pin in pins.items()
        if values.get(name, "unknown") != pin.expected
    ]
    if wrong:
        raise ConfigurationError(
            f"session variables do not keep the values that were set: {', '.join(wrong)}",
            where=settings.address,
            hint="connect to the server directly: a proxy or connection pooler answers or changes SET statements",
        )


def _text(shown: Any) -> str | None:
    if isinstance(shown, bytes):
        return shown.decode()
    return None if shown is None else str(shown)


def _log_in(settings: ConnectionSettings, overrides: Mapping[str, Any]) -> GuardedConnection:
    trust = trust_in(settings, more=(SERVER_KEY,))
    connection = GuardedConnection(
        settings,
        trust,
        overrides.get("read_timeout", CONNECT_SECONDS),
        **{
            "host": settings.host,
            "port": settings.port,
            "user": settings.user,
            "database": settings.database or None,
            "charset": "utf8mb4",
            "autocommit": None,
            "connect_timeout": CONNECT_SECONDS,
            "program_name": "airflow-provider-cdc",
            **_tls_arguments(settings, trust),
            **overrides,
        },
    )
    try:
        connection.connect()
    except CdcError as error:
        raise without_frames(error) from error.__cause__
    except pymysql.MySQLError as error:
        raise connect_error(settings, error) from without_frames(error)
    return connection


@contextmanager
def session(settings: ConnectionSettings, *, reading: bool = False, **overrides: Any) -> Iterator[Connection]:
    """Open a session as ``connect`` does, map the driver's errors, and close the session at the end."""
    connection = connect(settings, reading=reading, **overrides)
    try:
        yield connection
    except pymysql.MySQLError as error:
        # Do not map OSError, because it may come from other code in the block.
        raise statement_error(settings.address, error) from error
    finally:
        end(connection)


def end(connection: Connection) -> None:
    """Close a session, regardless of its state. A second call does nothing. The server releases the session's locks and
    ends its transaction."""
    if connection.open:
        connection.close()


def set_session(connection: Connection, variables: Mapping[str, str]) -> None:
    """Set session variables. The values are SQL expressions."""
    query(connection, "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in variables.items()))


def query(connection: pymysql.Connection[Any], sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows. In the statement, ``%s`` marks the place of each argument."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def value(connection: Connection, expression: str, args: Sequence[Any] = ()) -> Any:
    """Return the value of one SQL expression."""
    return query(connection, f"SELECT {expression}", args)[0][0]


def variables(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Return global variables as text (for example ``ON``, ``OFF``). Variables that the server does not have are
    omitted, unless servers of its version behave as with one certain value."""
    marks = ", ".join(["%s"] * len(names))
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return values_before(server_version(connection), names) | {name: str(setting) for name, setting in rows}


def account(connection: Connection) -> str:
    """Return the account for which the server checks privileges, in the syntax of GRANT."""
    user, _, host = str(value(connection, "CURRENT_USER()")).rpartition("@")
    return f"{quote(user)}@{quote(host)}"


def quote(*names: str) -> str:
    """Return an identifier in backticks, or several quoted identifiers that are joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def is_server_itself(connection: Connection) -> bool:
    """Return whether the session is connected to the server itself, and not to a proxy. A proxy might use several
    servers.

    The greeting of a proxy has the proxy's own connection ID, which differs from the server's connection ID.
    """
    # Add "+ 0", because proxies recognize the plain form of this query and answer it themselves.
    return _is_own_number(connection, int(value(connection, "CONNECTION_ID() + 0")))


def _is_own_number(connection: Connection, number: int) -> bool:
    return (number - connection.number) % (1 << 32) == 0


def _check_server(settings: RunSettings, connection: Connection) -> None:
    uuid, host, has_all, number = query(
        connection,
        "SELECT @@global.server_uuid, @@global.hostname, GTID_SUBSET(%s, @@global.gtid_executed), CONNECTION_ID() + 0",
        (str(settings.position),),
    )[0]
    hint = "let the connection name one server, not a load balancer, or trigger a new run"
    again = "clear the task `lock_and_record` and all tasks after it: the run then begins again on this server"
    if not _is_own_number(connection, int(number)):
        raise SourceReplaced(
            "a proxy answers instead of the server, and may forward statements to another server",
            where=settings.address,
            hint="connect to the server directly, or configure the proxy to forward connections unchanged",
        )
    if uuid != settings.server_uuid or settings.hostname not in ("", host):
        raise SourceReplaced(
            f"the run began on server {settings.server_uuid} ({settings.hostname}), but another server answers: "
            f"{uuid} ({host}), which {'has all' if has_all else 'lacks'} transactions of the run's initial position",
            where=settings.address,
            hint=f"if it took over, {again}; otherwise {hint}" if has_all else hint,
        )
    if not has_all:
        raise SourceReplaced(
            f"server {uuid} ({host}) lacks transactions of the run's initial position",
            where=settings.address,
            hint=f"{hint}; if the server lost these transactions in a crash, clear the task `lock_and_record` and all "
            "tasks after it",
        )


def server_version(connection: Connection) -> Version:
    """Return the server's version from its greeting."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", connection.greeted_version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _check_version(settings: ConnectionSettings, connection: Connection) -> None:
    version = connection.greeted_version
    if "mariadb" in version.lower():
        # MariaDB puts a version of MySQL before its own.
        raise ConfigurationError(
            f"the server is MariaDB ({version.removeprefix('5.5.5-')}), which is not supported: its GTIDs and its log "
            "differ from those of MySQL",
            where=settings.address,
            hint="name a MySQL server in the connection, or copy this server with another tool",
        )
    if server_version(connection) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise ConfigurationError(
            f"the server's version is {version}; MySQL {oldest} or later is required",
            where=settings.address,
            hint="upgrade the server, or copy from a replica of a supported version",
        )


def _tls_arguments(settings: ConnectionSettings, trust: Trust) -> dict[str, Any]:
    mode, tls = trust.mode, settings.tls
    if mode == DISABLED:
        return {"ssl_disabled": True}
    try:
        if mode not in (VERIFY_CA, VERIFY_IDENTITY):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context = ssl.create_default_context(cafile=tls.get("ca") or None)
            # Public certificate authorities sign certificates for any host. So check the host name, unless the settings
            # give another certificate authority (``ca``).
            context.check_hostname = mode == VERIFY_IDENTITY or not tls.get("ca")
            # Switch off the strict check of Python 3.13, because it rejects the certificates that MySQL generates.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if tls.get("cert"):
            # Without a password argument, OpenSSL would prompt on the terminal.
            context.load_cert_chain(tls["cert"], tls.get("key") or None, password="")
    except OSError as error:
        raise ConfigurationError(
            f"the TLS files cannot be read: {error}",
            where=settings.address,
            hint="correct the fields `tls_ca`, `tls_cert` and `tls_key`. The key must have no passphrase",
        ) from error
    return {"ssl": context}


# The maximum size of statements.
#
# The server rejects a statement that is larger than the server's max_allowed_packet, and ends the session. So code that
# puts a list into a statement distributes the list over several statements that are small enough.


_Item = TypeVar("_Item")

_MOST_BYTES = 1 << 22
"""The maximum size of a statement in bytes. Larger statements are not faster, and use more memory on the server."""
_LEAST_BYTES = 1 << 13
"""Statements up to this number of bytes are sent without querying the server's limit."""
_NUMBER_BYTES = 24
_QUOTES_BYTES = 12
"""The number of bytes around a text or binary literal, or before a parameter."""


def room(connection: Connection) -> int:
    """Return the number of bytes that the lists in one statement may have. The rest of the statement's size is for the
    text around the lists."""
    return min(connection.max_packet // 2, _MOST_BYTES)


def fits(connection: Connection, size: int) -> bool:
    """Return whether a list of ``size`` bytes fits into one statement."""
    return size <= _LEAST_BYTES or size <= room(connection)


def size_of(values: Iterable[KeyValue]) -> int:
    """Return the maximum number of bytes that the values need in a statement, because each byte may be escaped."""
    return sum(
        _NUMBER_BYTES
        if isinstance(value, int)
        else _QUOTES_BYTES + 2 * len(value if isinstance(value, bytes) else value.encode())
        for value in values
    )


def batches(
    connection: Connection, items: Sequence[_Item], bytes_of: Callable[[_Item], int], most: int
) -> Iterator[Sequence[_Item]]:
    """Split ``items``, in their order, into batches that fit into one statement.

    Each batch has at least one item and at most ``most`` items.

    :param bytes_of: a function that returns the number of bytes that an item adds to a statement.
    """
    sizes = [bytes_of(item) for item in items]
    limit = _LEAST_BYTES if sum(sizes) <= _LEAST_BYTES else room(connection)
    start = held = 0
    for index, size in enumerate(sizes):
        if index > start and (held + size > limit or index - start == most):
            yield items[start:index]
            start, held = index, 0
        held += size
    if start < len(items):
        yield items[start:]


def table_sql(name: TableName) -> str:
    """Return the table's name, quoted for SQL."""
    return quote(name.schema, name.name)
