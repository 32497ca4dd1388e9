"""The data of the demo: a small shop with accounts.

Money only moves between accounts, so the sum of all balances is the same at every position. A copy with another sum
mixes several positions. The tables have keys of all kinds that the chunk planner must handle.
"""

from __future__ import annotations

import pymysql

from harness.demo.stage import SCHEMA

TABLES: dict[str, str] = {
    "accounts": """
        id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
        owner VARCHAR(80) NOT NULL,
        balance DECIMAL(14,2) NOT NULL,
        status ENUM('active','frozen','closed') NOT NULL,
        updated_at TIMESTAMP(6) NOT NULL""",
    "ledger": """
        account_id BIGINT UNSIGNED NOT NULL,
        entry INT UNSIGNED NOT NULL,
        amount DECIMAL(14,2) NOT NULL,
        memo VARCHAR(100) NOT NULL,
        booked_at DATETIME(3) NOT NULL,
        PRIMARY KEY (account_id, entry)""",
    "customers": """
        email VARCHAR(120) COLLATE utf8mb4_0900_ai_ci NOT NULL PRIMARY KEY,
        name VARCHAR(80) CHARACTER SET latin1 NOT NULL,
        born DATE NULL,
        tags SET('new','vip','blocked') NOT NULL,
        profile JSON NULL""",
    "sessions": """
        token BINARY(16) NOT NULL PRIMARY KEY,
        account_id BIGINT UNSIGNED NOT NULL,
        score DOUBLE NOT NULL,
        seconds TIME(3) NOT NULL,
        payload VARBINARY(60) NULL""",
    "clicks": """
        account_id BIGINT UNSIGNED NOT NULL,
        page VARCHAR(40) NOT NULL,
        weight FLOAT NOT NULL,
        at DATETIME(6) NOT NULL,
        KEY (account_id)""",
}
"""Column definitions by table. ``clicks`` has an index but no key."""

_FILL: dict[str, tuple[float, str]] = {
    "accounts": (
        0.2,
        (
            "SELECT n, CONCAT('Owner ', n), 1000.00, ELT(1 + n % 10 DIV 9, 'active', 'frozen'), "
            "'2026-01-01 00:00:00.123456' FROM numbers"
        ),
    ),
    "ledger": (
        0.4,
        (
            "SELECT 1 + n % {accounts}, n DIV {accounts}, (n % 2000 - 1000) / 100, CONCAT('opening ', n), "
            "'2026-01-01' + INTERVAL n SECOND FROM numbers"
        ),
    ),
    "customers": (
        0.15,
        (
            "SELECT CONCAT(ELT(1 + n % 4, 'Anna', 'bob', 'Zoë', '李'), '.', n, '@example.com'), CONCAT('Müller ', n), "
            "IF(n % 7, '1980-01-01' + INTERVAL n % 15000 DAY, NULL), n % 8, "
            "IF(n % 5, JSON_OBJECT('visits', n, 'ratio', n / 7, 'tags', JSON_ARRAY('a', n % 3 = 0)), NULL) FROM numbers"
        ),
    ),
    "sessions": (
        0.15,
        (
            "SELECT UNHEX(LEFT(SHA2(n, 256), 32)), 1 + n % {accounts}, SQRT(n), SEC_TO_TIME(n % 86400), "
            "IF(n % 3, REPEAT(CHAR(n % 256), n % 60), NULL) FROM numbers"
        ),
    ),
    "clicks": (
        0.1,
        (
            "SELECT 1 + n % {accounts}, CONCAT('/page/', n % 500), n / 3, "
            "'2026-01-01' + INTERVAL n % 90000 SECOND FROM numbers"
        ),
    ),
}


def create(connection: pymysql.Connection, rows: int) -> None:
    """Create the shop again, with about ``rows`` rows in all tables together. The rows are the same every time."""
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
        cursor.execute(f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {SCHEMA}")
        cursor.execute("SET SESSION cte_max_recursion_depth = 100000000, time_zone = '+00:00'")
        accounts = max(1, int(rows * _FILL["accounts"][0]))
        for table, columns in TABLES.items():
            share, select = _FILL[table]
            cursor.execute(f"CREATE TABLE {table} ({columns})")
            cursor.execute(
                f"INSERT INTO {table} WITH RECURSIVE numbers (n) AS "
                f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {max(1, int(rows * share))}) "
                f"{select.format(accounts=accounts)}"
            )
            cursor.execute(f"ANALYZE TABLE {table}")
            cursor.fetchall()
