"""Unusual values of every session variable, for all sessions of a server that is discarded afterwards."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql

LARGEST = 1 << 24
"""Of sizes: more would be memory that this machine does not have."""

CHOICES: Mapping[str, Sequence[str]] = {
    "binlog_row_value_options": ["'PARTIAL_JSON'"],
    "block_encryption_mode": ["'aes-256-cbc'"],
    "character_set_client": ["'latin1'", "'sjis'"],
    "character_set_connection": ["'latin1'", "'utf16'"],
    "character_set_database": ["'utf16'"],
    "character_set_filesystem": ["'latin1'"],
    "character_set_results": ["'latin1'", "'utf16'"],
    "character_set_server": ["'latin1'", "'utf16'"],
    "collation_connection": ["'latin1_general_cs'", "'utf16_bin'"],
    "collation_database": ["'latin1_bin'"],
    "collation_server": ["'latin1_bin'"],
    "completion_type": ["'CHAIN'", "'RELEASE'"],
    "default_collation_for_utf8mb4": ["'utf8mb4_general_ci'"],
    "default_storage_engine": ["'MyISAM'"],
    "default_tmp_storage_engine": ["'MyISAM'"],
    "explain_format": ["'JSON'", "'TRADITIONAL'"],
    "explain_json_format_version": ["1"],
    "group_replication_consistency": ["'BEFORE_AND_AFTER'", "'EVENTUAL'"],
    "innodb_ft_user_stopword_table": ["NULL"],
    "internal_tmp_mem_storage_engine": ["'MEMORY'"],
    "lc_messages": ["'de_DE'", "'ja_JP'"],
    "lc_time_names": ["'de_DE'"],
    "long_query_time": ["0"],
    "max_length_for_sort_data": ["4"],
    "myisam_stats_method": ["'nulls_ignored'"],
    "optimizer_switch": [
        "'hypergraph_optimizer=on'",
        "'mrr=on,mrr_cost_based=off,batched_key_access=on,use_invisible_indexes=on,prefer_ordering_index=off'",
    ],
    "optimizer_trace": ["'enabled=on'"],
    "optimizer_trace_features": ["'greedy_search=off'"],
    "secondary_engine_cost_threshold": ["0"],
    "session_track_gtids": ["'ALL_GTIDS'", "'OWN_GTID'"],
    "session_track_system_variables": ["'*'"],
    "session_track_transaction_info": ["'CHARACTERISTICS'", "'STATE'"],
    "sql_mode": [
        "'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_ZERO_DATE,PIPES_AS_CONCAT'",
        "'HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT,IGNORE_SPACE,NO_UNSIGNED_SUBTRACTION,TIME_TRUNCATE_FRACTIONAL'",
    ],
    "sql_select_limit": ["2", "0"],
    "terminology_use_previous": ["'BEFORE_8_2_0'", "'BEFORE_8_0_26'"],
    "time_zone": ["'-07:00'", "'+13:45'"],
    "transaction_isolation": ["'READ-UNCOMMITTED'", "'SERIALIZABLE'"],
    "updatable_views_with_limit": ["'NO'"],
}
"""Values of variables that are neither switches nor numbers, or for which other numbers matter."""

LEFT_ALONE: Mapping[str, str] = {
    "binlog_format": "a rule of preflight refuses servers with another value",
    "binlog_row_image": "a rule of preflight refuses servers with another value",
    "connection_memory_limit": "ends sessions of ordinary users, as it should",
    "external_table_secondary_storage_engine": "takes engines only that no tested server has",
    "external_table_storage_engine": "takes engines only that no tested server has",
    "innodb_tmpdir": "takes paths only",
    "max_allowed_packet": "refuses statements that are longer, as it should",
    "max_user_connections": "refuses sessions beyond it, as it should",
    "gtid_owned": "cannot be set",
    "rbr_exec_mode": "has no global value in truth",
}


def session_variables(connection: pymysql.Connection[Any]) -> dict[str, str]:
    """All variables that each session can set, with the values of this session."""
    found = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT VARIABLE_NAME, VARIABLE_VALUE FROM performance_schema.session_variables")
        for name, value in cursor.fetchall():
            try:
                cursor.execute(f"SELECT @@SESSION.{name}")
            except pymysql.MySQLError:
                continue
            found[name] = value
    return found


def hostile_values(connection: pymysql.Connection[Any]) -> dict[str, Sequence[str]]:
    """Other values of each session variable that also has a global one, as SQL.

    :raises AssertionError: for a variable whose values are not listed above.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT VARIABLE_NAME, MIN_VALUE, MAX_VALUE FROM performance_schema.variables_info")
        bounds = {name: (int(least), int(most)) for name, least, most in cursor.fetchall()}
        cursor.execute("SELECT VARIABLE_NAME FROM performance_schema.global_variables")
        with_global = {name for (name,) in cursor.fetchall()}
    values: dict[str, Sequence[str]] = {}
    for name, value in session_variables(connection).items():
        if name in LEFT_ALONE or name not in with_global:
            continue
        if name in CHOICES:
            values[name] = CHOICES[name]
        elif value in ("ON", "OFF"):
            values[name] = ["OFF" if value == "ON" else "ON"]
        else:
            assert value.lstrip("-").isdigit(), f"add values of {name} to CHOICES"
            least, most = bounds[name]
            extremes = dict.fromkeys((least, min(most, LARGEST)))
            values[name] = [str(one) for one in extremes if one != int(value)]
    return values


def one_of_each(values: Mapping[str, Sequence[str]], turn: int) -> dict[str, str]:
    """The values of one turn: those of all variables appear within as many turns as the longest list has."""
    return {name: some[turn % len(some)] for name, some in values.items()}


def some_of_them(values: Mapping[str, Sequence[str]], chance: random.Random) -> dict[str, str]:
    """Values of about half of the variables."""
    return {name: chance.choice(some) for name, some in values.items() if chance.random() < 0.5}


def set_globally(connection: pymysql.Connection[Any], chosen: Mapping[str, str]) -> None:
    """Give these values to every session that begins from now on."""
    with connection.cursor() as cursor:
        for name, value in chosen.items():
            cursor.execute(f"SET GLOBAL {name} = {value}")
