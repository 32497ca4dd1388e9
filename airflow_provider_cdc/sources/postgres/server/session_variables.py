"""Every setting that a session of the tested servers can have of its own: pinned, required, or harmless, and why.

Sessions begin with the values of `PINNED` as start-up options, and `prepared` reads them back, together with those of
`REQUIRED`, which only a superuser may set. A test asks each server for all settings that a role, a database or a
session can change, and fails if one is in none of the tables here. Settings of extensions are not listed: the servers
of the tests have none, and a setting of an extension means nothing to a server without it.

What a table here says must hold for every value that a setting can have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_cdc.sources.postgres.catalog import types


@dataclass(frozen=True)
class Pinned:
    """A setting that every session has.

    ``value``
        as the server shows it.
    ``why``
        what another value would do.
    """

    value: str
    why: str


_LIMIT = "a limit that guards against careless users would end our statements or sessions"
_SEARCH = "the order of joins in the catalog would be searched for, for up to minutes"
_TRANSACTION = "a session in autocommit must read what is committed, and may write what a run keeps on the server"

PINNED: Mapping[str, Pinned] = {
    **{
        name: Pinned(value, "it says how values are printed, or which rows a statement sees (`types`)")
        for name, value in types.SESSION_SETTINGS.items()
    },
    "statement_timeout": Pinned("0", _LIMIT),
    "idle_in_transaction_session_timeout": Pinned("0", _LIMIT),
    "idle_session_timeout": Pinned("0", _LIMIT),
    "lock_timeout": Pinned("1min", "behind DDL that itself waits for a lock everybody waits, by default for ever"),
    "exit_on_error": Pinned("off", "errors that are expected and handled would end the session"),
    "default_transaction_isolation": Pinned("read committed", _TRANSACTION),
    "default_transaction_read_only": Pinned("off", _TRANSACTION),
    "default_transaction_deferrable": Pinned("off", _TRANSACTION),
    "quote_all_identifiers": Pinned(
        "off",
        "ADBC knows a type by the printed name of the function that receives it; in quotes, text would be bytes to it",
    ),
    "array_nulls": Pinned(
        "on", "a key that is an array is searched as its output function printed it: NULL in it is no word"
    ),
    "transform_null_equals": Pinned("off", "SQL that a table computes a column with would be read differently"),
    "enable_tidscan": Pinned("on", "a chunk is a range of blocks, and would be read by a scan of the whole table"),
    "timezone_abbreviations": Pinned(
        "Default", "AT TIME ZONE 'IST' in a database view or a virtual column would be another zone"
    ),
    "gin_fuzzy_search_limit": Pinned(
        "0",
        "a GIN index, also one of plain numbers (btree_gin), would give about so many of the rows that it is asked for",
    ),
    "constraint_exclusion": Pinned(
        "off", "rows that break a CHECK constraint would be left out wherever it contradicts what is asked for"
    ),
    "join_collapse_limit": Pinned("8", _SEARCH),
    "from_collapse_limit": Pinned("8", _SEARCH),
    "geqo": Pinned("off", _SEARCH),
    "jit": Pinned("off", "compiling a plan that does nothing but scan takes longer than it saves"),
    "max_parallel_workers_per_gather": Pinned("0", "a run would take more of the server than its own sessions"),
    "client_min_messages": Pinned("warning", "the driver prints what the server sends, down to each plan, to the log"),
}

REQUIRED: Mapping[str, Pinned] = {
    "zero_damaged_pages": Pinned("off", "the rows of a damaged page are left out without an error"),
    "ignore_checksum_failure": Pinned("off", "what is left of a damaged page is read"),
}
"""Settings that hide damage, and that only a superuser may change: preflight refuses other values, as does each session
of a run."""

_SET_LATER = """
    synchronous_commit transaction_timeout tcp_keepalives_count tcp_keepalives_idle tcp_keepalives_interval
    tcp_user_timeout application_name
"""

_HARMLESS: Mapping[str, str] = {
    "Sessions set it in another way (`prepared`, `session`), and no row depends on it.": _SET_LATER,
    "It chooses a plan, and every plan gives the same rows.": """
        cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost cursor_tuple_fraction debug_parallel_query
        effective_cache_size enable_async_append enable_bitmapscan enable_distinct_reordering enable_gathermerge
        enable_group_by_reordering enable_hashagg enable_hashjoin enable_incremental_sort enable_indexonlyscan
        enable_indexscan enable_material enable_memoize enable_mergejoin enable_nestloop enable_parallel_append
        enable_parallel_hash enable_partition_pruning enable_partitionwise_aggregate enable_partitionwise_join
        enable_presorted_aggregate enable_self_join_elimination enable_seqscan enable_sort force_parallel_mode
        geqo_effort geqo_generations geqo_pool_size geqo_seed geqo_selection_bias
        geqo_threshold ignore_system_indexes jit_above_cost jit_debugging_support jit_dump_bitcode jit_expressions
        jit_inline_above_cost jit_optimize_above_cost jit_profiling_support jit_tuple_deforming
        max_parallel_workers min_parallel_index_scan_size min_parallel_table_scan_size parallel_leader_participation
        parallel_setup_cost parallel_tuple_cost plan_cache_mode random_page_cost recursive_worktable_factor
        seq_page_cost
    """,
    "It says how much memory a statement takes, or how it reads and writes files.": """
        backend_flush_after effective_io_concurrency file_copy_method hash_mem_multiplier io_combine_limit
        logical_decoding_work_mem maintenance_io_concurrency maintenance_work_mem max_parallel_maintenance_workers
        temp_buffers temp_tablespaces vacuum_buffer_usage_limit work_mem
    """,
    "It concerns rows that a session writes, and ours write none.": """
        commit_delay commit_siblings default_toast_compression gin_pending_list_limit lo_compat_privileges
        session_replication_role transaction_deferrable wal_compression wal_consistency_checking wal_init_zero
        wal_recycle wal_skip_threshold
    """,
    "It concerns objects that a session creates; of ours these are publications and slots only.": """
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
        debug_print_rewritten log_connections log_disconnections log_duration log_error_verbosity log_executor_stats
        log_lock_failures log_lock_waits log_min_duration_sample log_min_duration_statement log_min_error_statement
        log_min_messages log_parameter_max_length log_parameter_max_length_on_error log_parser_stats log_planner_stats
        log_replication_commands log_statement log_statement_sample_rate log_statement_stats log_temp_files
        log_transaction_sample_rate trace_notify trace_sort track_activities track_cost_delay_timing track_counts
        track_functions track_io_timing track_wal_io_timing update_process_title
    """,
    "It concerns code that a superuser loads into sessions, or lets run in them; what that does is not known here.": """
        dynamic_library_path event_triggers extension_control_path extension_destdir local_preload_libraries
        session_preload_libraries
    """,
    "It may end a statement with an error, but never drops rows; we leave it to the administrator.": """
        max_stack_depth restrict_nonsystem_relation_kind temp_file_limit
    """,
    "It says when waiting or silent sessions are looked at. Sessions that stream from a slot are none of ours.": """
        client_connection_check_interval deadlock_timeout post_auth_delay wal_sender_timeout
    """,
    "It says how text becomes a value or a number text, by functions that no statement of ours uses; neither do "
    "virtual columns or database views that are copied, for they are not immutable.": """
        default_text_search_config lc_numeric lc_time xmloption
    """,
    "It concerns escapes in strings, of which our SQL has none.": "backslash_quote escape_string_warning",
    "Errors are told apart by their SQLSTATE.": "lc_messages",
    "It says which currency money is in: part of the server's identity (`prepared.MEANING`).": "lc_monetary",
    "It says where a scan of a whole table begins; it returns each row once, and no order is relied on.": """
        synchronize_seqscans
    """,
    "Statistics are never read twice in one transaction.": "stats_fetch_consistency",
    "Each transaction gets it anew from the default, which is pinned.": "transaction_isolation transaction_read_only",
    "It is for developers of the server, who make it forget or send things sooner.": """
        debug_discard_caches debug_logical_replication_streaming
    """,
}

HARMLESS: Mapping[str, str] = {name: why for why, names in _HARMLESS.items() for name in names.split()}
"""By name, why no value of the setting can change or cut what our sessions read."""
