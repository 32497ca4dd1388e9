"""How MySQL servers differ: versions 8.0.26 to 9.7, and the managed services of Amazon and Google.

`FEATURES` lists what this package uses of a server: statements, variables, tables of the catalog, events of the log,
login methods, and the behaviour on which a decision depends. Each entry has the first version with the feature, the
first version without it, and the page of the reference manual with these facts. No other module compares versions.

The simulated server of the tests answers from this table, and rejects everything else. The command ``check_server``
compares a server with the table. No server before 9.7 was available when the table was written: it follows the manuals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

Version = tuple[int, int, int]

OLDEST_VERSION: Version = (8, 0, 26)
"""The oldest supported version. It has the names ``replica_…`` and ``log_replica_updates`` of variables."""

_MANUAL = "https://dev.mysql.com/doc/refman/{}/en/{}.html"
_PROTOCOL = "https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_{}.html"


class Subject(Enum):
    """What a feature is. The value is its name in reports and in the documentation."""

    STATEMENT = "statement"
    COMMAND = "command"
    VARIABLE = "variable"
    TABLE = "catalog table"
    COLUMN = "catalog column"
    EVENT = "log event"
    LOGIN = "login method"
    BEHAVIOUR = "behaviour"


@dataclass(frozen=True)
class Feature:
    """Something that a server has or lacks, depending on its version.

    :param use: what this package does with it.
    :param page: the page of the reference manual, without its extension; of a command: of the protocol's documentation.
    :param since: the first version that has the feature. `OLDEST_VERSION`: this version or an earlier one.
    :param until: the first version that no longer has the feature. None: 9.7 still has it.
    :param instead: what this package does on versions without the feature. Empty: the feature is in all versions.
    :param probe: a statement that reads nothing, and fails if the server lacks the feature. Empty: no statement shows
        this.
    :param parsed: the server only parses the probe, because its execution would take locks.
    :param number: the number of an event.
    :param privilege: the privilege that it needs, in the syntax of GRANT. Empty: none, or SELECT on the copied tables.
    :param certain: whether a manual says this for all supported versions. Otherwise, the package does not rely on the
        entry: it works with the feature and without it.
    """

    subject: Subject
    name: str
    use: str
    page: str
    since: Version = OLDEST_VERSION
    until: Version | None = None
    instead: str = ""
    probe: str = ""
    parsed: bool = False
    number: int = 0
    privilege: str = ""
    certain: bool = True

    def known_to(self, version: Version) -> bool:
        """Return whether a server of this version has the feature."""
        return self.since <= version and (self.until is None or version < self.until)

    @property
    def differs(self) -> bool:
        """Whether supported versions differ in the feature."""
        return self.since > OLDEST_VERSION or self.until is not None or not self.certain

    @property
    def versions(self) -> str:
        """The versions that have the feature, as text."""
        since = f"{_text(self.since)} and later" if self.since > OLDEST_VERSION else ""
        until = f"before {_text(self.until)}" if self.until is not None else ""
        return (", ".join(filter(None, (since, until))) or "all") + ("" if self.certain else " (uncertain)")

    @property
    def manual(self) -> str:
        """The address of the page of the manual of a version that has the feature."""
        if self.subject is Subject.COMMAND:
            return _PROTOCOL.format(self.page)
        series = "8.0" if self.until is not None and self.until <= (8, 4, 0) else "8.4"
        return _MANUAL.format("9.7" if self.since > (8, 4, 0) else series, self.page)


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def comment_number(version: Version) -> int:
    """Return a version as versioned comments write it, such as 80029."""
    major, minor, patch = version
    return 10_000 * major + 100 * minor + patch


# Statements.


def _statement(name: str, use: str, page: str, probe: str = "", privilege: str = "") -> Feature:
    return Feature(Subject.STATEMENT, name, use, page, probe=probe or name, privilege=privilege)


_CLIENT, _REPLICATION = "REPLICATION CLIENT ON *.*", "REPLICATION SLAVE ON *.*"
_END_OF_LOG = "find the end of the log, and the log's filters"

SHOW_BINARY_LOG_STATUS = replace(
    _statement("SHOW BINARY LOG STATUS", _END_OF_LOG, "show-binary-log-status", privilege=_CLIENT),
    since=(8, 2, 0),
    instead="SHOW MASTER STATUS",
)
SHOW_MASTER_STATUS = replace(
    _statement("SHOW MASTER STATUS", _END_OF_LOG, "show-master-status", privilege=_CLIENT),
    until=(8, 4, 0),
    instead="SHOW BINARY LOG STATUS",
)

_TABLE_LOCK = "read tables under a short lock"
_READ = "read rows"
_STATEMENTS = (
    SHOW_BINARY_LOG_STATUS,
    SHOW_MASTER_STATUS,
    _statement("SHOW BINARY LOGS", "list the files of the log", "show-binary-logs", privilege=_CLIENT),
    _statement(
        "SHOW BINLOG EVENTS",
        "read which transactions precede a file",
        "show-binlog-events",
        "SHOW BINLOG EVENTS LIMIT 2",
        _REPLICATION,
    ),
    _statement(
        "SHOW REPLICA STATUS",
        "find out whether the server is a replica; measure its lag",
        "show-replica-status",
        privilege=_CLIENT,
    ),
    _statement("SHOW REPLICAS", "test the privilege REPLICATION SLAVE", "show-replicas", privilege=_REPLICATION),
    _statement("SHOW GRANTS", "read the privileges of the user", "show-grants"),
    _statement(
        "SHOW GLOBAL VARIABLES",
        "read settings",
        "show-variables",
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('gtid_mode')",
    ),
    _statement("SHOW GLOBAL STATUS", "measure the load", "show-status", "SHOW GLOBAL STATUS LIKE 'Threads_running'"),
    _statement("SHOW WARNINGS", "stop if a value was omitted from a result", "show-warnings"),
    _statement(
        "XA RECOVER CONVERT XID", "list prepared transactions", "xa-statements", privilege="XA_RECOVER_ADMIN ON *.*"
    ),
    replace(
        _statement("LOCK TABLES", _TABLE_LOCK, "lock-tables", "LOCK TABLES information_schema.TABLES READ"),
        parsed=True,
        privilege="LOCK TABLES",
    ),
    _statement("UNLOCK TABLES", _TABLE_LOCK, "lock-tables"),
    _statement("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", "read at one position", "commit"),
    _statement("START TRANSACTION READ ONLY", "keep tables from being altered for a moment", "commit"),
    _statement("COMMIT AND NO CHAIN", "end a transaction", "commit"),
    _statement("ROLLBACK", "end a transaction", "commit"),
    _statement("DO", "keep a session alive", "do", "DO 0"),
    _statement("SET NAMES", "log in", "set-names", "SET NAMES utf8mb4"),
    _statement("SET SESSION", "set the variables of a session", "set-variable", "SET SESSION autocommit = 1"),
    _statement("SET @", "announce the reader of the log", "user-variables", "SET @replica_uuid = ''"),
    _statement(
        "SET TRANSACTION ISOLATION LEVEL",
        "read at one position",
        "set-transaction",
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    ),
    _statement(
        "EXPLAIN FORMAT=TRADITIONAL", "estimate the rows of chunks", "explain", "EXPLAIN FORMAT=TRADITIONAL SELECT 1"
    ),
    _statement("SELECT", _READ, "select", "SELECT 1"),
    _statement("(SELECT", _READ, "union", "(SELECT 1) UNION ALL (SELECT 2)"),
    _statement(
        "WITH RECURSIVE",
        "read the labels of an ENUM",
        "with",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 2) SELECT i FROM n",
    ),
)


def statement(version: Version, *ways: Feature) -> str:
    """Return the first of several statements with one effect that a server of this version has."""
    return next(way.name for way in ways if way.known_to(version))


# Commands of the protocol.


_COMMANDS = {
    0x01: ("COM_QUIT", "end a session"),
    0x03: ("COM_QUERY", "send statements"),
    0x12: ("COM_BINLOG_DUMP", "read the log"),
    0x16: ("COM_STMT_PREPARE", "read rows in binary"),
    0x17: ("COM_STMT_EXECUTE", "read rows in binary"),
    0x19: ("COM_STMT_CLOSE", "read rows in binary"),
    0x1E: ("COM_BINLOG_DUMP_GTID", "read the log of some transactions, or from a position beyond 4 GiB"),
    0x1F: ("COM_RESET_CONNECTION", "remove what init_connect left in a session"),
}
COMMANDS: Mapping[int, Feature] = {
    number: Feature(Subject.COMMAND, name, use, name.lower(), privilege=_REPLICATION if "BINLOG" in name else "")
    for number, (name, use) in _COMMANDS.items()
}
"""The commands that this package sends, by their numbers."""


# System variables.


_BINARY_LOG, _GTIDS, _INNODB, _SYSTEM, _REPLICA = (
    "replication-options-binary-log",
    "replication-options-gtids",
    "innodb-parameters",
    "server-system-variables",
    "replication-options-replica",
)
_CHECKED, _SESSION, _POSITION = "check settings", "give each session the same value", "fix and compare positions"
_VARIABLE_NAMES = {
    (_CHECKED, _BINARY_LOG): """
        log_bin binlog_format binlog_row_image binlog_row_value_options binlog_order_commits binlog_error_action
        binlog_expire_logs_seconds binlog_transaction_compression log_replica_updates sync_binlog
    """,
    (_CHECKED, _GTIDS): "gtid_mode enforce_gtid_consistency",
    (_CHECKED, _REPLICA): """
        replica_preserve_commit_order replica_skip_errors replica_exec_mode replica_type_conversions
    """,
    (_CHECKED, _INNODB): "innodb_flush_log_at_trx_commit innodb_force_recovery",
    (_CHECKED, _SYSTEM): """
        version version_comment basedir hostname lower_case_table_names partial_revokes performance_schema
        max_allowed_packet old_alter_table read_only super_read_only system_time_zone
    """,
    (_POSITION, _GTIDS): "gtid_executed gtid_owned gtid_purged",
    (_POSITION, "replication-options"): "server_id server_uuid",
    (_SESSION, _SYSTEM): """
        autocommit completion_type transaction_isolation transaction_read_only time_zone sql_mode character_set_client
        character_set_connection collation_connection character_set_results lc_messages sql_select_limit
        sql_auto_is_null use_secondary_engine sql_quote_show_create information_schema_stats_expiry optimizer_switch
        max_sort_length sort_buffer_size eq_range_index_dive_limit range_optimizer_max_mem_size cte_max_recursion_depth
        sql_big_selects sql_buffer_result max_execution_time lock_wait_timeout net_write_timeout net_read_timeout
        wait_timeout
    """,
}


def _variables() -> Iterator[Feature]:
    for (use, page), names in _VARIABLE_NAMES.items():
        yield from (Feature(Subject.VARIABLE, name, use, page) for name in names.split())
    yield Feature(
        Subject.VARIABLE,
        "show_gipk_in_create_table_and_information_schema",
        "see generated invisible primary keys, whose columns are in the log",
        _SYSTEM,
        since=(8, 0, 30),
        instead="there are no such keys",
    )
    yield Feature(
        Subject.VARIABLE,
        "binlog_expire_logs_auto_purge",
        "find out whether the server removes its log",
        _BINARY_LOG,
        since=(8, 0, 29),
        instead="the server always removes its log",
    )
    yield Feature(
        Subject.VARIABLE,
        "innodb_native_foreign_keys",
        "find out whether the log has the rows that foreign keys change",
        _INNODB,
        since=(9, 6, 0),
        instead="the log lacks these rows: tables with such foreign keys are read with `lock`",
    )
    yield Feature(
        Subject.VARIABLE,
        "group_replication_consistency",
        "do not wait for the group while a lock is held",
        "group-replication-options",
        instead="there is no group; a manual does not say which versions have the variable without the plugin",
        certain=False,
    )


VARIABLES: Mapping[str, Feature] = {one.name: replace(one, probe=f"SELECT @@{one.name}") for one in _variables()}
"""The variables that this package reads or sets. A server without a variable rejects a statement that sets it."""


def has_variable(version: Version, name: str) -> bool:
    """Return whether a server of this version has a variable.

    :raises KeyError: `VARIABLES` lacks the variable: look up the versions that have it, and add it.
    """
    return VARIABLES[name].known_to(version)


_BEFORE = {"binlog_expire_logs_auto_purge": "ON"}
"""The value as which a server without the variable behaves."""


def values_before(version: Version, names: Iterable[str]) -> dict[str, str]:
    """Return the values as which a server of this version behaves, of the variables that it does not have."""
    return {name: _BEFORE[name] for name in names if name in _BEFORE and not has_variable(version, name)}


# Tables of the catalog.


_TABLES = {
    "information_schema": {
        "COLUMNS": ("read the definitions of tables", "information-schema-columns-table"),
        "INNODB_METRICS": ("measure the load", "information-schema-innodb-metrics-table"),
        "INNODB_TABLES": ("notice tables that were replaced", "information-schema-innodb-tables-table"),
        "INNODB_TABLESPACES_BRIEF": (
            "notice tables that were replaced",
            "information-schema-innodb-tablespaces-brief-table",
        ),
        "KEY_COLUMN_USAGE": ("find the parents of tables", "information-schema-key-column-usage-table"),
        "PARTITIONS": ("read the partitions of tables", "information-schema-partitions-table"),
        "REFERENTIAL_CONSTRAINTS": (
            "find the parents of tables",
            "information-schema-referential-constraints-table",
        ),
        "STATISTICS": ("find the keys of tables", "information-schema-statistics-table"),
        "TABLES": ("find tables", "information-schema-tables-table"),
        "TRIGGERS": ("check tables that are written by statements", "information-schema-triggers-table"),
    },
    "performance_schema": {
        "global_status": ("read the time of the server's start", "performance-schema-status-variable-tables"),
        "metadata_locks": ("name the session that keeps a table locked", "performance-schema-metadata-locks-table"),
        "processlist": ("notice OPTIMIZE TABLE", "performance-schema-processlist-table"),
        "replication_applier_configuration": (
            "check a replica whose log is read",
            "performance-schema-replication-applier-configuration-table",
        ),
        "replication_applier_filters": (
            "check a server after a failover",
            "performance-schema-replication-applier-filters-table",
        ),
        "replication_applier_global_filters": (
            "check a server after a failover",
            "performance-schema-replication-applier-global-filters-table",
        ),
        "threads": ("name the session that keeps a table locked", "performance-schema-threads-table"),
        "variables_info": ("notice settings that were set during a run", "performance-schema-variables-info-table"),
    },
}
_PROCESS = "PROCESS ON *.*"
_HIDDEN = (
    "metadata_locks",
    "replication_applier_configuration",
    "replication_applier_filters",
    "replication_applier_global_filters",
    "threads",
)
"""The tables of the performance schema that not all users see."""
TABLES: Mapping[str, Feature] = {
    f"{schema}.{name}".lower(): Feature(
        Subject.TABLE,
        f"{schema}.{name}",
        use,
        page,
        probe=f"SELECT 1 FROM {schema}.{name} LIMIT 0",
        privilege=_PROCESS if name.startswith("INNODB") else f"SELECT ON {schema}.{name}" if name in _HIDDEN else "",
    )
    for schema, tables in _TABLES.items()
    for name, (use, page) in tables.items()
}
"""The tables of the catalog that this package reads, by their names in lower case."""

ROW_VERSIONS = Feature(
    Subject.COLUMN,
    "TOTAL_ROW_VERSIONS",
    "notice columns that were added and dropped instantly (information_schema.INNODB_TABLES)",
    "information-schema-innodb-tables-table",
    since=(8, 0, 29),
    instead="columns are only added instantly, which changes the definition of the table",
    probe="SELECT TOTAL_ROW_VERSIONS FROM information_schema.INNODB_TABLES LIMIT 0",
    privilege=_PROCESS,
)


# The log. `log_protocol` has all events.


def _event(number: int, name: str, use: str, page: str, since: Version = OLDEST_VERSION, instead: str = "") -> Feature:
    return Feature(Subject.EVENT, name, use, page, since=since, instead=instead, number=number)


_TAGS = "replication-gtids-concepts"
EVENTS = (
    _event(39, "PARTIAL_UPDATE_ROWS", "read changes of JSON documents", "replication-options-binary-log"),
    _event(40, "TRANSACTION_PAYLOAD", "read compressed transactions", "binary-log-transaction-compression"),
    replace(
        _event(41, "HEARTBEAT_V2", "ignore it: the log is requested without waiting", "replication-options-binary-log"),
        instead="HEARTBEAT",
        certain=False,
    ),
    _event(42, "TAGGED_GTID", "read transactions with a tag", _TAGS, (8, 3, 0), "no transaction has a tag"),
)
"""The events that only some servers write, and those that other readers of the log do not know."""


# Login methods. Any of them can be configured for an account, so a login shows which one it is.


_LOGINS = (
    Feature(Subject.LOGIN, "caching_sha2_password", "log in", "caching-sha2-pluggable-authentication"),
    Feature(
        Subject.LOGIN,
        "sha256_password",
        "log in",
        "sha256-pluggable-authentication",
        certain=False,
        instead="caching_sha2_password; it is deprecated, and a manual does not say when it is removed",
    ),
    Feature(
        Subject.LOGIN,
        "mysql_native_password",
        "log in (8.4: only with --mysql-native-password=ON)",
        "native-pluggable-authentication",
        until=(9, 0, 0),
        instead="caching_sha2_password",
    ),
)


# Behaviour.


INSTANT_ANYWHERE = Feature(
    Subject.BEHAVIOUR,
    "INSTANT ADD and DROP COLUMN at any place",
    "carry ALTER TABLE during a run: the identity of the table stays the same",
    "innodb-online-ddl-operations",
    since=(8, 0, 29),
    instead="such a statement rebuilds the table",
)
SIX_DIGIT_COMMENTS = Feature(
    Subject.BEHAVIOUR,
    "versioned comments with six digits",
    "parse statements in the log",
    "comments",
    since=(8, 1, 0),
    instead="the sixth digit is part of the statement",
    probe="SELECT 1 /*!080026 + 1 */",
)
XA_VISIBLE_WHEN_EXECUTED = Feature(
    Subject.BEHAVIOUR,
    "rows of XA transactions are visible on a replica when their GTID is executed",
    "read tables on replicas: a read that waits for such a transaction begins at this very moment",
    "xa-restrictions",
    since=(8, 0, 30),
    instead="tables are read on the source only",
)
_BEHAVIOUR = (
    INSTANT_ANYWHERE,
    SIX_DIGIT_COMMENTS,
    XA_VISIBLE_WHEN_EXECUTED,
    Feature(
        Subject.BEHAVIOUR,
        "GTIDs with tags",
        "encode positions; the commands COM_BINLOG_DUMP_GTID and GTID_SUBSET get tags only if the server has them",
        _TAGS,
        since=(8, 3, 0),
        instead="no position has a tag",
        probe="SELECT GTID_SUBSET('00000000-0000-0000-0000-000000000001:tag:1', '')",
    ),
    Feature(
        Subject.BEHAVIOUR,
        "the type VECTOR",
        "read columns of this type",
        "vector",
        since=(9, 0, 0),
        instead="no column has this type",
        probe="SELECT VECTOR_DIM(STRING_TO_VECTOR('[1]'))",
    ),
)

FEATURES: tuple[Feature, ...] = (
    *_STATEMENTS,
    *COMMANDS.values(),
    *VARIABLES.values(),
    *TABLES.values(),
    ROW_VERSIONS,
    *EVENTS,
    *_LOGINS,
    *_BEHAVIOUR,
)


# Managed services.


@dataclass(frozen=True)
class Service:
    """Where a server runs, as far as it matters for hints.

    :param settings: where variables are set, as the end of a sentence. Empty: with SET PERSIST.
    :param log: what switches the log on.
    :param keep: the setting that says how long the log is kept.
    :param missing: what even the first user of the service may not do, and what follows for copies.
    :param recognized: by what the service is recognized.
    :param manual: the pages of the service's documentation on which this rests.
    """

    name: str
    settings: str
    log: str
    keep: str
    missing: str
    recognized: str
    manual: tuple[str, ...]

    def set(self, variable: str, value: object) -> str:
        """Return a hint that sets a variable."""
        if variable == "log_bin":
            return self.log
        if self.settings:
            return f"set {variable} = {value} {self.settings}"
        if variable in _AT_START:
            return f"start the server with {variable} = {value}"
        return f"SET PERSIST {variable} = {value}"

    @property
    def longer(self) -> str:
        """A hint that names the setting that keeps the log, and where it is set."""
        if self.keep == RETENTION_HOURS:
            return f"raise {self.keep} (CALL mysql.rds_set_configuration)"
        return f"raise {self.keep} ({self.settings or 'SET PERSIST'})"

    def keep_log(self, seconds: int) -> str:
        """Return a hint that keeps the log for a number of seconds."""
        if self.keep == RETENTION_HOURS:
            return f"CALL mysql.rds_set_configuration('{RETENTION_HOURS}', {max(24, -(-seconds // 3600))})"
        return self.set(self.keep, max(seconds, 86_400))


_AT_START = ("log_replica_updates", "innodb_force_recovery")
RETENTION_HOURS, _EXPIRE = "binlog retention hours", "binlog_expire_logs_seconds"
_AMAZON_DOCS = "https://docs.aws.amazon.com/AmazonRDS/latest"
_NO_SUPER = (
    "`SUPER`, `SET PERSIST`, start options, and on some versions `FLUSH TABLES WITH READ LOCK`: a run needs none of "
    "them"
)

SELF_MANAGED = Service(
    "self-managed",
    "",
    "start the server with log_bin = ON",
    _EXPIRE,
    "nothing",
    "nothing else applies",
    ("https://dev.mysql.com/doc/refman/8.4/en/replication-options-binary-log.html",),
)
RDS = Service(
    "Amazon RDS",
    "in the parameter group of the instance, and reboot if it asks for that",
    "enable automated backups of the instance (a retention of at least one day): they switch the log on",
    RETENTION_HOURS,
    f"{_NO_SUPER}. Since 8.0.36, the role `rds_superuser_role` has the privileges of the master user",
    "`basedir` begins with `/rdsdbbin`",
    (
        f"{_AMAZON_DOCS}/UserGuide/USER_LogAccess.MySQL.BinaryFormat.html",
        f"{_AMAZON_DOCS}/UserGuide/mysql-stored-proc-configuring.html",
        f"{_AMAZON_DOCS}/UserGuide/Appendix.MySQL.CommonDBATasks.privilege-model.html",
    ),
)
AURORA = Service(
    "Amazon Aurora",
    "in the parameter group of the cluster, and reboot if it asks for that",
    "set binlog_format = ROW in the parameter group of the cluster, and reboot: this switches the log on. Only the "
    "writer has a log, so the host of the connection must be the endpoint of the cluster",
    RETENTION_HOURS,
    f"{_NO_SUPER}. Readers of the cluster have no log",
    "the variable `aurora_version`",
    (
        f"{_AMAZON_DOCS}/AuroraUserGuide/USER_LogAccess.MySQL.BinaryFormat.html",
        f"{_AMAZON_DOCS}/AuroraUserGuide/AuroraMySQL.Replication.MySQL.html",
        f"{_AMAZON_DOCS}/AuroraUserGuide/AuroraMySQL.Reference.ParameterGroups.html",
    ),
)
CLOUD_SQL = Service(
    "Google Cloud SQL",
    "as a database flag of the instance; this may restart it",
    "enable point-in-time recovery of the instance: it switches the log on",
    _EXPIRE,
    f"{_NO_SUPER}. The role `cloudsqlsuperuser` has the privileges of the first user. Not all variables are flags",
    "the version ends with `-google`",
    (
        "https://cloud.google.com/sql/docs/mysql/flags",
        "https://cloud.google.com/sql/docs/mysql/users",
        "https://cloud.google.com/datastream/docs/configure-cloudsql-mysql",
    ),
)
SERVICES = (SELF_MANAGED, RDS, AURORA, CLOUD_SQL)
SIGNS_OF_SERVICES = ("basedir", "aurora_version")
"""The variables by which services are recognized. `VARIABLES` lacks what only a service has."""
_RDS_BASE = "/rdsdbbin"


def service_of(version: str, signs: Mapping[str, str]) -> Service:
    """Return the service that runs a server.

    :param version: the version in the server's greeting.
    :param signs: the variables in `SIGNS_OF_SERVICES` that the server has.
    """
    if version.endswith("-google"):
        return CLOUD_SQL
    if "aurora_version" in signs:
        return AURORA
    return RDS if signs.get("basedir", "").startswith(_RDS_BASE) else SELF_MANAGED
