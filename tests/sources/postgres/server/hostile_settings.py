"""Unusual values of every setting, for all sessions of one role."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

LARGEST = 100_000
"""Of sizes: more would be memory, and time, that this machine does not have."""

CHOICES: Mapping[str, Sequence[str]] = {
    "DateStyle": ["German, DMY", "SQL, MDY"],
    "TimeZone": ["Asia/Kolkata"],
    "application_name": ["another"],
    "backtrace_functions": ["exec_simple_query"],
    "client_encoding": ["LATIN1", "SQL_ASCII"],
    "createrole_self_grant": ["set"],
    "default_text_search_config": ["simple"],
    "extra_float_digits": ["-15", "0"],
    # Their product is memory, which recursive statements take at once if they are expected to return much.
    "hash_mem_multiplier": ["1", "8"],
    "recursive_worktable_factor": ["0.001", "100"],
    "work_mem": ["64", "65536"],
    "lc_messages": ["POSIX"],
    "lc_monetary": ["POSIX"],
    "lc_numeric": ["POSIX"],
    "lc_time": ["POSIX"],
    "log_min_messages": ["debug5", "panic"],
    "restrict_nonsystem_relation_kind": ["view, foreign-table"],
    "search_path": ["nowhere", "shop"],
    "statement_timeout": ["1"],
    "lock_timeout": ["1"],
    "idle_session_timeout": ["1"],
    "idle_in_transaction_session_timeout": ["1"],
    "timezone_abbreviations": ["Australia", "India"],
    # It ends the very first statement, which lifts it, if that takes longer.
    "transaction_timeout": ["5s"],
    "wal_sender_timeout": ["1"],
}
"""Values of settings that are neither switches nor numbers nor enums, or for which other numbers matter."""

LEFT_ALONE: Mapping[str, str] = {
    **dict.fromkeys(
        ["dynamic_library_path", "extension_control_path", "extension_destdir"], "takes paths of libraries only"
    ),
    **dict.fromkeys(["local_preload_libraries", "session_preload_libraries"], "takes libraries only"),
    **dict.fromkeys(["default_tablespace", "temp_tablespaces"], "takes tablespaces only"),
    "default_table_access_method": "there is one only",
    **dict.fromkeys(
        ["zero_damaged_pages", "ignore_checksum_failure", "composite_type_mismatch"], "refused, see the test of that"
    ),
    "output_plugin_libraries": "takes libraries only",
    **dict.fromkeys(["max_stack_depth", "temp_file_limit"], "ends statements, as it should"),
    "log_statement_stats": "cannot be on together with the more exact ones",
    "wal_consistency_checking": "takes resource managers only",
    **dict.fromkeys(
        ["ignore_system_indexes", "jit_debugging_support", "jit_profiling_support", "log_connections"],
        "not for a role",
    ),
    **dict.fromkeys(["log_disconnections", "post_auth_delay"], "not for a role"),
    **dict.fromkeys(["transaction_deferrable", "transaction_isolation", "transaction_read_only"], "not for a role"),
}

Setting = tuple[str, str, str, str, str | None, str | None, list[str] | None]


def session_settings(connection: psycopg.Connection[Any]) -> list[Setting]:
    """All settings that a session can set, except those of extensions: name, context, type, value, least
    and greatest value, list of values."""
    return connection.execute(
        "SELECT name, context, vartype, setting, min_val, max_val, enumvals FROM pg_settings "
        "WHERE context IN ('user', 'superuser', 'backend', 'superuser-backend') AND name NOT LIKE '%.%'"
    ).fetchall()


def hostile_values(connection: psycopg.Connection[Any]) -> dict[str, Sequence[str]]:
    """Other values of each setting.

    :raises AssertionError: for a setting whose values are not listed above.
    """
    values: dict[str, Sequence[str]] = {}
    for name, _, kind, value, least, most, choices in session_settings(connection):
        if name in LEFT_ALONE:
            continue
        if name == "standard_conforming_strings" and connection.info.server_version >= 190_000:
            # It is always on.
            continue
        if name in CHOICES:
            values[name] = CHOICES[name]
        elif kind == "bool":
            values[name] = ["off" if value == "on" else "on"]
        elif choices:
            others = [one for one in choices if one != value]
            values[name] = list(dict.fromkeys([*others[:1], *others[-1:]]))
        else:
            assert least is not None, f"add values of {name} to CHOICES"
            assert most is not None
            most = str(min(float(most) if kind == "real" else int(most), LARGEST))
            values[name] = [one for one in (least, most) if float(one) != float(value)]
    return {name: some for name, some in values.items() if some}


def one_of_each(values: Mapping[str, Sequence[str]], turn: int) -> dict[str, str]:
    """The values of one turn: those of all settings appear within as many turns as the longest list has."""
    return {name: some[turn % len(some)] for name, some in values.items()}


def some_of_them(values: Mapping[str, Sequence[str]], chance: random.Random) -> dict[str, str]:
    """Values of about half of the settings."""
    return {name: chance.choice(some) for name, some in values.items() if chance.random() < 0.5}


def set_for_role(connection: psycopg.Connection[Any], role: str, chosen: Mapping[str, str]) -> None:
    """Give these values, and no others, to every session that the role begins from now on."""
    connection.execute(f"ALTER ROLE {role} RESET ALL".encode())
    for name, value in chosen.items():
        text = value.replace("'", "''")
        connection.execute(f"ALTER ROLE {role} SET {name} = '{text}'".encode())
