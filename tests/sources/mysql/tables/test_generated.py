"""Virtual columns are copied only if every session sees the same value. The sessions here differ in every setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.session import query
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import LogReading

SESSIONS = [
    "sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
    "time_zone = '+05:30'",
    "lc_time_names = 'de_DE', default_week_format = 3",
    "div_precision_increment = 10",
    "sql_mode = 'TRADITIONAL'",
    "sql_mode = ''",
    "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",
    "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
    "sql_mode = 'NO_UNSIGNED_SUBTRACTION'",
    "sql_mode = 'HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT,TIME_TRUNCATE_FRACTIONAL'",
    "collation_connection = 'latin1_german1_ci', character_set_client = 'latin1'",
    "default_collation_for_utf8mb4 = 'utf8mb4_general_ci'",
    "timestamp = 1000000, block_encryption_mode = 'aes-256-cbc'",
]

COLUMNS = """
    id INT PRIMARY KEY, n INT, u INT UNSIGNED, f DOUBLE, m DECIMAL(10,2), c CHAR(5), s VARCHAR(40), d DATE,
    dt DATETIME(3), ts TIMESTAMP(3) NULL, t TIME(3), y YEAR, e ENUM('a','b'), st SET('a','b'), j JSON, b VARBINARY(9)
"""
ROWS = [
    """(1, 7, 9, 1.25, 12.5, 'ab', '2024-02-28', '2024-02-28', '2024-02-28 23:59:59.9', '2024-01-01 23:30:00.7',
        '23:00:00.6', 2024, 'a', 'a', '{"a": "x"}', 'x')""",
    "(2, -3, 2, 1e10, -0.05, '', 'a b', '2024-01-01', NULL, NULL, '-01:00:00', 0, 'b', 'a,b', '{\"a\": 1.5}', '')",
    """(3, 1234567, 1, 0.1, 3, 'é', 'PAID', '2024-12-31', '2024-06-01 01:02:03', '2024-07-01 00:10:00', '838:59:59',
        1999, 'a', '', '[]', x'ff')""",
    "(4, 5, 5, 5, 5, 'x', '5', '2021-01-03', '2021-01-03', '2021-01-03', '00:00:00', 1901, NULL, NULL, NULL, NULL)",
]

SAME = """
    BIGINT: n + 1; n - 5; n * 3; n DIV 3; n % 3; abs(n); -n; bit_count(n); n & 7; floor(f); round(m, 1)
    BIGINT: n between 1 and 5; n in (1, 2); n > 1 and u < 5; n is not null; s = 'paid'; e = 'a'; s <> 'x' or ts is null
    BIGINT: if(ts is null, 0, 1); case when d is null then 0 when n = 7 then 1 else 2 end; c is null
    BIGINT: year(d); month(dt); hour(t); year(d) * 100 + month(d); microsecond(dt); to_days(d) - to_days(dt); quarter(d)
    BIGINT: length(s); char_length(s); json_length(j); json_valid(s); crc32(s); u + u * 2
    VARCHAR(200): concat(s, '|', n); concat_ws('-', s, e, st); lower(s); upper(s); left(s, 2); substr(s, 2)
    VARCHAR(200): substring_index(s, ' ', 1); trim(s); replace(s, 'a', 'b'); hex(b); sha2(s, 256); cast(f as char)
    VARCHAR(200): cast(s as char(40)); cast(n as char); cast(j as char); cast(s as binary(40)); concat(cast(m as char))
    VARCHAR(200): ifnull(s, 'x'); coalesce(s, e); case when n > 1 then 'a' else 'b' end; concat(f, m, y)
    VARCHAR(200): json_unquote(json_extract(j, '$.a')); j->>'$.a'; if(s = 'paid', 'yes', 'no'); if(d is null, s, e)
    DECIMAL(20,4): n * m; cast(m as decimal(20,4)); m + 0.5; round(m)
    DATE: cast(dt as date); date(dt); d; cast(d as date)
    DATETIME(3): dt; if(n > 1, dt, null)
    TIME(3): t
    JSON: json_extract(j, '$.a'); j
"""
"""Result: expressions that mean the same in every session."""

DIFFERENT = """
    DATE: date(ts); cast(s as date); cast(t as date); dt
    BIGINT: hour(ts); length(c); (u - 5) * n; year(t); s > dt; hex(n) = '7'; dt
    VARCHAR(200): dayname(d); monthname(d); date_format(dt, '%M'); cast(ts as char); from_unixtime(n); concat(c, '|')
    VARCHAR(200): json_object('a', ts); aes_encrypt(s, 'k'); s like c; concat(ts, '')
    DECIMAL(30,12): n / 3; abs(u - 5)
    TIME: t; time(dt); time(ts)
    TIMESTAMP: dt
    DATETIME: ts; timestamp(t); dt; str_to_date(s, '%Y-%m-%d')
    BIGINT: soundex(n); cast(coalesce(dt) as signed); (0x05 - n) % 7
    VARCHAR(200): cast(b as char); cast(concat(b, s) as char(3)); cast(unhex(s) as char); cast(char(n) as char)
    VARCHAR(200): cast(cast(s as binary(1)) as char); cast(_binary'x' as char); upper(cast(b as char))
"""
"""Result: expressions that do not mean the same in every session, or are not known to."""


def cases(text: str) -> Iterator[tuple[str, str]]:
    for line in text.strip().splitlines():
        kind, _, expressions = line.strip().partition(": ")
        for expression in expressions.split("; "):
            yield kind, expression


@pytest.fixture
def source(mysql: MysqlServer) -> MysqlSource:
    return MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))


def create(mysql: MysqlServer, schema: str, virtual: list[tuple[str, str]], kind: str = "VIRTUAL") -> list[str]:
    columns = [f"v{at} {result} AS ({expression}) {kind}" for at, (result, expression) in enumerate(virtual)]
    with mysql.connect(database=schema) as connection:
        query(connection, "SET sql_mode = 'ALLOW_INVALID_DATES'")
        query(connection, f"CREATE TABLE t ({', '.join([COLUMNS, *columns])})")
    return [f"v{at}" for at in range(len(virtual))]


NAMES = "id, n, u, f, m, c, s, d, dt, ts, t, y, e, st, j, b"


@pytest.mark.slow
def test_what_every_session_sees_alike(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    """Read and logged by sessions that differ in everything."""
    names = create(mysql, schema, list(cases(SAME)))
    source.preflight([f"{schema}.t"])
    mysql.query(f"INSERT INTO {schema}.t ({NAMES}) VALUES {', '.join(ROWS)}")
    shown = ", ".join(f"HEX({name})" for name in names)
    seen: list[list[tuple[Any, ...]]] = []
    for session in SESSIONS:
        with mysql.connect(database=schema) as connection:
            query(connection, f"SET {session}")
            mysql.query(f"FLUSH TABLES {schema}.t")
            seen.append(query(connection, f"SELECT {shown} FROM t ORDER BY id"))
            reading = LogReading(mysql, schema, "t")
            query(connection, "UPDATE t SET b = 'y' WHERE id = 1")
            before = reading.read().before["t"][key(1)]
            query(connection, "UPDATE t SET b = 'x' WHERE id = 1")
            query(connection, "DELETE FROM t WHERE id = 4")
            after = reading.read().before["t"][key(4)]
            assert before is not None
            assert after is not None
            seen.append([before, after])
            mysql.query(f"INSERT INTO {schema}.t ({NAMES}) VALUES {ROWS[-1]}")
    columns = len(names)
    for at, session in enumerate(SESSIONS):
        for one, other in zip(seen[2 * at] + seen[2 * at + 1], seen[0] + seen[1], strict=True):
            differing = [
                case for case, a, b in zip(cases(SAME), one[-columns:], other[-columns:], strict=True) if a != b
            ]
            assert not differing, session


def test_what_sessions_see_differently(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    virtual = list(cases(DIFFERENT))
    names = create(mysql, schema, virtual)
    with pytest.raises(PreflightError) as raised:
        source.preflight([f"{schema}.t"])
    found = {problem.where for problem in raised.value.problems}
    assert [case for case, name in zip(virtual, names, strict=True) if f"{schema}.t.{name}" not in found] == []
    assert all("STORED" in problem.hint for problem in raised.value.problems)
    mysql.query(f"DROP TABLE {schema}.t")
    create(mysql, schema, virtual, "STORED")
    source.preflight([f"{schema}.t"])


def test_dates_that_no_calendar_has_are_cast_as_the_session_likes(
    source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    """With the policy `error` such a row stops the run; with the others it is copied."""
    create(mysql, schema, [("DATE", "date(dt)")])
    source.preflight([f"{schema}.t"], TableOptions(unrepresentable="error"))
    for policy in ("string", "null"):
        with pytest.raises(PreflightError, match="v0"):
            source.preflight([f"{schema}.t"], TableOptions(unrepresentable=policy))


def test_bytes_that_are_not_text_and_fractions_are_cast_as_the_session_likes(mysql: MysqlServer, schema: str) -> None:
    """This is why they are in `DIFFERENT`: no session gets an error, but each gets another value."""
    create(mysql, schema, [("VARCHAR(9)", "cast(b as char)"), ("BIGINT", "cast(coalesce(dt) as signed)")])
    mysql.query(f"INSERT INTO {schema}.t (id, b, dt) VALUES (1, 'x', '2024-02-28 23:59:59.9')")
    seen = []
    for mode in ("STRICT_ALL_TABLES", "TIME_TRUNCATE_FRACTIONAL"):
        with mysql.connect(database=schema) as connection:
            query(connection, "SET sql_mode = ''")
            query(connection, "UPDATE t SET b = x'ff'")
            query(connection, f"SET sql_mode = '{mode}'")
            seen.append(query(connection, "SELECT v0, v1 FROM t")[0])
    assert seen == [(None, 20240229000000), ("", 20240228235959)]


@pytest.mark.slow
def test_stored_columns_are_logged_as_a_select_shows_them(mysql: MysqlServer, schema: str) -> None:
    virtual = [("DATE", "date(ts)"), ("VARCHAR(40)", "dayname(d)"), ("DECIMAL(30,12)", "n / 3"), ("INT", "length(c)")]
    names = create(mysql, schema, virtual, "STORED")
    for at, session in enumerate(SESSIONS):
        with mysql.connect(database=schema) as connection:
            query(connection, f"SET {session}")
            query(connection, f"REPLACE INTO t ({NAMES}) VALUES {ROWS[0]}")
        columns = ", ".join(names)
        (selected,) = mysql.query(f"SELECT {columns} FROM {schema}.t")
        reading = LogReading(mysql, schema, "t")
        other = SESSIONS[at - 1]
        with mysql.connect(database=schema) as connection:
            query(connection, f"SET {other}")
            query(connection, "UPDATE t SET b = 'changed'")
        logged = reading.read().before["t"][key(1)]
        assert logged is not None
        assert logged[-len(names) :] == selected
