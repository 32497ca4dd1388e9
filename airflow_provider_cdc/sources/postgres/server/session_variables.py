"""Lists every setting that a session can change on the tested servers, each with a reason.

There are three tables: pinned, required and harmless settings.

Sessions are opened with the values of `PINNED` as start-up options. `session_setup` reads them back, together with the
settings of `REQUIRED`, which only a superuser may change. A test queries each server for all settings that a role, a
database or a session can change, and fails if a setting is missing from these tables. Settings of extensions are not
listed: the servers of the tests have no extensions, and a server without an extension ignores its settings.

A reason in these tables must hold for every possible value of the setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SESSION_SETTINGS: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    # Unless the path names pg_temp, the server searches pg_temp (the schema of temporary tables) first.
    "search_path": "pg_catalog, pg_temp",
    "standard_conforming_strings": "on",
    "xmlbinary": "base64",
    # The setting row_security does not affect how values are printed. With row_security=on, the server would silently
    # omit rows that a policy hides.
    "row_security": "off",
}
"""The settings of every session that reads tables or the log. They include all settings that determine how output
functions print a value, except ``lc_monetary``. ``lc_monetary`` determines the currency of ``money``, and keeps the
value of the database."""


@dataclass(frozen=True)
class Pinned:
    """A setting with a fixed value.

    ``value``
        the value, as the server shows it.
    ``why``
        the effect that another value would have, or the reason for choosing this value.
    """

    value: str
    why: str


_LIMIT = "a limit that protects against careless users would end the statements or sessions of a run"
_SEARCH = "the planner would spend up to minutes on the join order of catalog queries"
_TRANSACTION = "a session in autocommit must read committed rows, and may change the run's slots and publications"

PINNED: Mapping[str, Pinned] = {
    **{
        name: Pinned(
            value, "the setting decides how the server prints values, or which rows a statement sees (see `types`)"
        )
        for name, value in SESSION_SETTINGS.items()
    },
    "statement_timeout": Pinned("0", _LIMIT),
    "idle_in_transaction_session_timeout": Pinned("0", _LIMIT),
    "idle_session_timeout": Pinned("0", _LIMIT),
    "lock_timeout": Pinned("1min", "a session would wait forever for a DDL statement that itself waits for a lock"),
    "exit_on_error": Pinned("off", "errors that the code expects and handles would end the session"),
    "default_transaction_isolation": Pinned("read committed", _TRANSACTION),
    "default_transaction_read_only": Pinned("off", _TRANSACTION),
    "default_transaction_deferrable": Pinned("off", _TRANSACTION),
    "quote_all_identifiers": Pinned(
        "off",
        "ADBC recognizes a type by the printed name of its receive function. If the server quotes this name, ADBC "
        "reads text as bytes",
    ),
    "array_nulls": Pinned(
        "on",
        "the run searches for an array in a key by the text that the server prints. In this text, an unquoted NULL "
        "must be a null, not the word NULL",
    ),
    "transform_null_equals": Pinned("off", "the SQL expressions that compute columns would be parsed differently"),
    "enable_tidscan": Pinned("on", "a chunk is a range of blocks, and each chunk would scan the whole table"),
    "timezone_abbreviations": Pinned(
        "Default", "AT TIME ZONE 'IST' in a database view or a virtual column would mean another zone"
    ),
    "gin_fuzzy_search_limit": Pinned(
        "0",
        "if this limit is not 0, a GIN index returns only some of the matching rows. (With btree_gin, plain numbers "
        "can have a GIN index, too.)",
    ),
    "constraint_exclusion": Pinned(
        "off", "if a CHECK constraint contradicts the query, rows that violate the constraint would be left out"
    ),
    "join_collapse_limit": Pinned("8", _SEARCH),
    "from_collapse_limit": Pinned("8", _SEARCH),
    "geqo": Pinned("off", _SEARCH),
    "jit": Pinned(
        "off", "the statements of a run only scan tables, and compiling their plans takes more time than it saves"
    ),
    "max_parallel_workers_per_gather": Pinned(
        "0", "a run would use more processes of the server than its own sessions"
    ),
    "client_min_messages": Pinned(
        "warning",
        "the driver prints all messages of the server to the log. At lower levels, these include the plan of each "
        "query",
    ),
}

REQUIRED: Mapping[str, Pinned] = {
    "zero_damaged_pages": Pinned("off", "the rows of a damaged page are left out without an error"),
    "ignore_checksum_failure": Pinned("off", "damaged pages are read as if they were intact"),
    "composite_type_mismatch": Pinned("error", "a composite value of an altered type is read with other fields"),
}
"""The required values of settings that can hide damage. Only a superuser may change these settings. Preflight and each
session of a run reject other values. A server that does not have a setting does not have its effect either."""

_SET_LATER = """
    synchronous_commit transaction_timeout tcp_keepalives_count tcp_keepalives_idle tcp_keepalives_interval
    tcp_user_timeout application_name
"""

_HARMLESS: Mapping[str, str] = {
    "Sessions set it in another way (`session_setup`, `session`), and no row depends on it.": _SET_LATER,
    "It chooses a plan, and every plan gives the same rows.": """
        cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost cursor_tuple_fraction debug_parallel_query
        effective_cache_size enable_async_append enable_bitmapscan enable_distinct_reordering
        enable_eager_aggregate enable_gathermerge
        enable_group_by_reordering enable_hashagg enable_hashjoin enable_incremental_sort enable_indexonlyscan
        enable_indexscan enable_material enable_memoize enable_mergejoin enable_nestloop enable_parallel_append
        enable_parallel_hash enable_partition_pruning enable_partitionwise_aggregate enable_partitionwise_join
        enable_presorted_aggregate enable_self_join_elimination enable_seqscan enable_sort force_parallel_mode
        geqo_effort geqo_generations geqo_pool_size geqo_seed geqo_selection_bias
        geqo_threshold ignore_system_indexes jit_above_cost jit_debugging_support jit_dump_bitcode jit_expressions
        jit_inline_above_cost jit_optimize_above_cost jit_profiling_support jit_tuple_deforming
        max_parallel_workers min_eager_agg_group_size min_parallel_index_scan_size min_parallel_table_scan_size
        parallel_leader_participation
        parallel_setup_cost parallel_tuple_cost plan_cache_mode random_page_cost recursive_worktable_factor
        seq_page_cost
    """,
    "It determines how much memory a statement uses, or how it reads and writes files.": """
        backend_flush_after effective_io_concurrency file_copy_method hash_mem_multiplier io_combine_limit
        logical_decoding_work_mem maintenance_io_concurrency maintenance_work_mem max_parallel_maintenance_workers
        temp_buffers temp_tablespaces vacuum_buffer_usage_limit work_mem
    """,
    "It concerns rows that a session writes; the sessions of a run write none.": """
        commit_delay commit_siblings default_toast_compression gin_pending_list_limit lo_compat_privileges
        session_replication_role transaction_deferrable wal_compression wal_consistency_checking wal_init_zero
        wal_recycle wal_skip_threshold
    """,
    "It concerns objects that a session creates; the sessions of a run create only publications and slots.": """
        allow_in_place_tablespaces allow_system_table_mods check_function_bodies createrole_self_grant
        default_statistics_target default_table_access_method default_tablespace icu_validation_level
        md5_password_warnings password_encryption scram_iterations
    """,
    "It concerns VACUUM and ANALYZE.": """
        vacuum_cost_delay vacuum_cost_limit vacuum_cost_page_dirty vacuum_cost_page_hit vacuum_cost_page_miss
        vacuum_failsafe_age vacuum_freeze_min_age vacuum_freeze_table_age vacuum_max_eager_freeze_failure_rate
        vacuum_multixact_failsafe_age vacuum_multixact_freeze_min_age vacuum_multixact_freeze_table_age vacuum_truncate
    """,
    "It concerns what is logged, traced or counted.": """
        backtrace_functions compute_query_id debug_pretty_print debug_print_parse debug_print_plan
        debug_print_raw_parse debug_print_rewritten log_connections log_disconnections log_duration log_error_verbosity
        log_executor_stats
        log_lock_failures log_lock_waits log_min_duration_sample log_min_duration_statement log_min_error_statement
        log_min_messages log_parameter_max_length log_parameter_max_length_on_error log_parser_stats log_planner_stats
        log_replication_commands log_statement log_statement_sample_rate log_statement_stats log_temp_files
        log_transaction_sample_rate timing_clock_source trace_notify trace_sort track_activities track_cost_delay_timing
        track_counts
        track_functions track_io_timing track_wal_io_timing update_process_title
    """,
    "It concerns code that a superuser loads into sessions or allows to run in them; its effect is unknown.": """
        dynamic_library_path event_triggers extension_control_path extension_destdir local_preload_libraries
        session_preload_libraries
    """,
    "It may end a statement with an error, but never drops rows; the administrator decides.": """
        max_stack_depth output_plugin_libraries restrict_nonsystem_relation_kind temp_file_limit
    """,
    "It determines when the server checks waiting or silent sessions. No session of a run streams from a slot.": """
        client_connection_check_interval deadlock_timeout post_auth_delay wal_receiver_timeout
        wal_sender_shutdown_timeout wal_sender_timeout
    """,
    "It controls conversions between text and values by functions that no statement of a run uses. Virtual columns and "
    "database views that are copied do not use them either, because these functions are not immutable.": """
        default_text_search_config lc_numeric lc_time xmloption
    """,
    "It concerns escapes in strings; the SQL of a run has none.": "backslash_quote escape_string_warning",
    "Errors are distinguished by their SQLSTATE.": "lc_messages",
    "It is the currency of money, and part of the server's identity (`facts.MEANING`).": "lc_monetary",
    "It determines where a scan of a whole table begins; a scan returns each row once, in any order.": """
        synchronize_seqscans
    """,
    "Statistics are never read twice in one transaction.": "stats_fetch_consistency",
    "Each transaction takes it from the default, which is pinned.": "transaction_isolation transaction_read_only",
    "It is for developers of the server: it makes the server discard caches or send changes sooner.": """
        debug_discard_caches debug_logical_replication_streaming
    """,
}

HARMLESS: Mapping[str, str] = {name: why for why, names in _HARMLESS.items() for name in names.split()}
"""For each setting, the reason why none of its values can change or truncate the results of a session's reads."""
