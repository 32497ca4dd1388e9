"""Every session variable of the tested servers: pinned by each of our sessions, or harmless, and why.

`session.connect` resets the session, sets what is in `PINNED`, and reads it back. A test asks the server for all of its
session variables and fails if one is in none of the tables here. Variables that have only a global value are not
listed: those that exactness rests on are rules of ``server``.

What a table here says must hold for every value that a variable can have on the server, and for every value that
``init_connect`` can give it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IDLE_SECONDS = "900"
"""The server ends a session that has been idle for so long."""

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Pinned:
    """A variable that every session sets.

    ``value``
        what it is set to, an SQL expression.
    ``why``
        what another value would do.
    ``read``
        the SQL expression that reads it back; empty: the session's value.
    ``shown``
        what that gives, as text; empty: ``value`` without its quotes.
    ``since``
        the first version that knows the variable.
    """

    value: str
    why: str
    read: str = ""
    shown: str = ""
    since: Version = (0, 0, 0)

    @property
    def expected(self) -> str | None:
        return None if self.value == "NULL" else self.shown or self.value.strip("'")


_CUT = "rows beyond the limit are left out without an error"
_IDLE = (
    "a task that writes files, or waits for a core, may leave a session alone for a while, also between the rows of "
    "one statement; but a session whose task is gone must not keep a snapshot or a lock for hours"
)
_TEXT = "the server takes our statements for text of this character set"

PINNED: Mapping[str, Pinned] = {
    # Transactions
    "autocommit": Pinned("1", "a session without it reads everything in the view of its first statement"),
    "completion_type": Pinned(
        "'NO_CHAIN'",
        "CHAIN begins a transaction at each COMMIT and ROLLBACK, so that the session reads on in an old view (and "
        "refuses SET TRANSACTION); RELEASE ends the session there",
    ),
    "transaction_isolation": Pinned("'REPEATABLE-READ'", "READ UNCOMMITTED shows what is not in the log"),
    "transaction_read_only": Pinned("0", "sessions must not depend on what a read-only transaction may do"),
    # Values
    "time_zone": Pinned("'+00:00'", "TIMESTAMP values are shown in it"),
    "sql_mode": Pinned(
        "'ALLOW_INVALID_DATES'",
        "modes change what a SELECT returns (PAD_CHAR_TO_FULL_LENGTH) and how SQL is read (ANSI_QUOTES); a date that "
        "another session was allowed to store must be allowed as a bound",
    ),
    "character_set_client": Pinned("'utf8mb4'", _TEXT),
    "character_set_connection": Pinned("'utf8mb4'", _TEXT),
    "collation_connection": Pinned("'utf8mb4_0900_ai_ci'", "texts that are computed are compared by it"),
    "character_set_results": Pinned(
        "'utf8mb4'", "names and messages come in it; reading sessions set NULL: bytes as they are stored"
    ),
    "lc_messages": Pinned("'en_US'", "some errors can be told apart by their text only"),
    # Rows
    "sql_select_limit": Pinned("18446744073709551615", _CUT),
    "sql_auto_is_null": Pinned("0", "IS NULL would also find the row that was inserted last"),
    "use_secondary_engine": Pinned("'OFF'", "a copy in a secondary engine lags behind the log"),
    "show_gipk_in_create_table_and_information_schema": Pinned(
        "1",
        "the log holds the column of a generated invisible primary key, so the catalog must show it",
        since=(8, 0, 30),
    ),
    # What the server tells of itself
    "sql_quote_show_create": Pinned("1", "SHOW GRANTS is read, and without quotes its names are ambiguous"),
    "information_schema_stats_expiry": Pinned("0", "sizes of tables would be those of up to a year ago"),
    # Plans of statements: chunks are planned from EXPLAIN, and must be read as ranges of an index
    "optimizer_switch": Pinned(
        "'hypergraph_optimizer=off'",
        "that optimizer answers EXPLAIN in a form of its own; the other switches choose a way to the same rows",
        read="FIND_IN_SET('hypergraph_optimizer=off', @@SESSION.optimizer_switch) > 0",
        shown="1",
    ),
    "max_sort_length": Pinned("24576", "of long texts, only the first bytes would be put in order"),
    "sort_buffer_size": Pinned("4194304", "it has to hold some texts of `max_sort_length`"),
    "eq_range_index_dive_limit": Pinned(
        "0", "rows of one value would be estimated by statistics, and not by a look into the index"
    ),
    "range_optimizer_max_mem_size": Pinned("0", "each chunk would be read by a scan of the whole table"),
    "cte_max_recursion_depth": Pinned("1000", "a recursive query asks for labels of enums, and would be ended"),
    # Limits that would end our statements, and time-outs
    "sql_big_selects": Pinned("1", "max_join_size would refuse the reads of large tables"),
    "sql_buffer_result": Pinned("0", "each chunk would be written to a temporary table before its first row is sent"),
    "max_execution_time": Pinned("0", "long reads would be ended"),
    "lock_wait_timeout": Pinned("60", "behind DDL that waits for a lock everybody waits, by default for a year"),
    "net_write_timeout": Pinned(IDLE_SECONDS, _IDLE),
    "net_read_timeout": Pinned(IDLE_SECONDS, _IDLE),
    "wait_timeout": Pinned(IDLE_SECONDS, _IDLE),
}

_HARMLESS: Mapping[str, str] = {
    "It concerns rows that a session writes, and ours write none.": """
        auto_increment_increment auto_increment_offset binlog_direct_non_transactional_updates binlog_format
        binlog_row_image binlog_row_value_options binlog_rows_query_log_events binlog_transaction_compression
        binlog_transaction_compression_level_zstd bulk_insert_buffer_size enable_cascade_triggers foreign_key_checks
        innodb_lock_wait_timeout low_priority_updates max_delayed_threads max_insert_delayed_threads rbr_exec_mode
        sql_safe_updates unique_checks updatable_views_with_limit xa_detach_on_prepare
    """,
    "It concerns objects that a session creates or alters, and ours create none.": """
        default_storage_engine default_table_encryption default_tmp_storage_engine enable_secondary_engine_statistics
        explicit_defaults_for_timestamp external_table_secondary_storage_engine external_table_storage_engine
        histogram_generation_max_mem_size innodb_ddl_buffer_size innodb_ddl_threads innodb_ft_enable_stopword
        innodb_ft_user_stopword_table innodb_strict_mode innodb_tmpdir keep_files_on_create myisam_sort_buffer_size
        myisam_stats_method old_alter_table restrict_fk_on_non_standard_key sql_generate_invisible_primary_key
        sql_require_primary_key character_set_server collation_server character_set_database collation_database
    """,
    "It concerns statements that no session of ours runs (SHOW CREATE, SELECT … INTO, CALL, CREATE USER).": """
        character_set_filesystem generated_random_password_length max_sp_recursion_depth print_identified_with_as_hex
        select_into_buffer_size select_into_disk_sync select_into_disk_sync_delay show_create_table_verbosity
    """,
    "No statement of ours uses the functions it changes, and virtual columns made with them are refused "
    "(``generated``).": """
        block_encryption_mode default_week_format div_precision_increment group_concat_max_len
        lc_time_names max_points_in_geometry windowing_use_high_precision
    """,
    "Whatever we compare or sort as text names its collation.": "default_collation_for_utf8mb4",
    "It cuts what is sorted. Sorting only proposes where to cut a table; the order of an index is not cut.": """
        max_length_for_sort_data
    """,
    "It chooses a plan, and every plan gives the same rows: key ranges name their index (FORCE INDEX).": """
        max_seeks_for_key optimizer_max_subgraph_pairs optimizer_prune_level optimizer_search_depth
        secondary_engine_cost_threshold
    """,
    "It says how much memory a statement takes, and what goes to disk instead.": """
        big_tables internal_tmp_mem_storage_engine join_buffer_size max_heap_table_size preload_buffer_size
        query_alloc_block_size query_prealloc_size range_alloc_block_size read_buffer_size read_rnd_buffer_size
        set_operations_buffer_size tmp_table_size transaction_alloc_block_size
        transaction_prealloc_size innodb_parallel_read_threads net_buffer_length connection_memory_chunk_size
    """,
    "It may end a statement or a session with an error, but never drops rows; we leave it to the administrator.": """
        connection_memory_limit global_connection_memory_tracking max_user_connections
        parser_max_mem_size
    """,
    "No session can set it. What is longer comes as NULL or as an empty text, with a warning, which stops the read "
    "(``decode.too_long``).": "max_allowed_packet",
    "It takes a privilege to set. A read stops if fewer warnings are listed than there were, and one of the others "
    "might say that a value was left out (``decode.too_long``).": "max_error_count",
    "max_join_size counts only while sql_big_selects is off.": "max_join_size",
    "wait_timeout is taken from it when a client that calls itself interactive logs in.": "interactive_timeout",
    "With autocommit, LOCK TABLES takes no lock of InnoDB.": "innodb_table_locks",
    "It counts tries of a write to the network.": "net_retry_count",
    "It makes sessions wait for the other servers of a group; the one that holds a lock sets it (``snapshot``).": """
        group_replication_consistency
    """,
    "Every EXPLAIN of ours names its format, and none is JSON.": """
        end_markers_in_json explain_format explain_json_format_version
    """,
    "It renames instruments, threads and states, none of which we ask for.": "terminology_use_previous",
    "The server heeds it only for clients that say, at login, that they understand it; the driver does not.": """
        resultset_metadata session_track_gtids session_track_schema session_track_state_change
        session_track_system_variables session_track_transaction_info
    """,
    "It concerns what is logged, traced or warned of.": """
        long_query_time min_examined_row_limit optimizer_trace optimizer_trace_features
        optimizer_trace_limit optimizer_trace_max_mem_size optimizer_trace_offset profiling profiling_history_size
        sql_log_off sql_notes sql_warnings
    """,
    "It has no global value, so the reset of the session gives it its default.": """
        gtid_next identity immediate_server_version insert_id last_insert_id original_commit_timestamp
        original_server_version pseudo_replica_mode pseudo_slave_mode pseudo_thread_id rand_seed1 rand_seed2
        require_row_format show_create_table_skip_secondary_engine sql_log_bin timestamp transaction_allow_batching
    """,
    "Nobody can set it.": "error_count external_user gtid_owned proxy_user statement_id warning_count",
}

HARMLESS: Mapping[str, str] = {name: why for why, names in _HARMLESS.items() for name in names.split()}
"""By name, why no value of the variable can change or cut what our sessions read."""


def pinned(version: Version) -> dict[str, Pinned]:
    """What a session on a server of this version sets."""
    return {name: pin for name, pin in PINNED.items() if version >= pin.since}
