"""All session variables of the tested servers. Each variable is either pinned by every session or harmless. The reason
is given for each variable.

`session.connect` resets the session, sets the variables in `PINNED`, and reads them back. A test reads all session
variables of the server, and fails if a variable is missing from the tables in this module. Variables that have only a
global value are not listed here. ``checks.settings`` has the rules for the global variables on which exactness depends.

Each reason must hold for every value that the variable can have on the server, and for every value that
``init_connect`` can set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IDLE_SECONDS = "900"
"""The server ends a session after it has been idle for this number of seconds."""

Version = tuple[int, int, int]


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
    ``since``
        the first server version that has the variable.
    """

    value: str
    why: str
    read: str = ""
    shown: str = ""
    since: Version = (0, 0, 0)

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
        since=(8, 0, 30),
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
    "stops the read (``decode.too_long``).": "max_allowed_packet",
    "Setting it requires a privilege. A read stops if the server lists fewer warnings than there were, because one of "
    "the others might report an omitted value (``decode.too_long``).": "max_error_count",
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
    return {name: pin for name, pin in PINNED.items() if version >= pin.since}
