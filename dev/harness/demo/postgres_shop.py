"""The demo's shop on PostgreSQL: the tables of `mysql_shop` with PostgreSQL types.

Money only moves between accounts, so the sum of all balances is the same at every position.
"""

from __future__ import annotations

from typing import Any

import psycopg

from harness.demo.stage import SCHEMA

_TABLES = """
    CREATE TYPE account_status AS ENUM ('active', 'frozen', 'closed');
    CREATE TABLE accounts (
        id bigint PRIMARY KEY,
        owner varchar(80) NOT NULL,
        balance numeric(14,2) NOT NULL,
        status account_status NOT NULL,
        updated_at timestamptz NOT NULL);
    CREATE TABLE ledger (
        account_id bigint,
        entry integer,
        amount numeric(14,2) NOT NULL,
        memo varchar(100) NOT NULL,
        booked_at timestamp(3) NOT NULL,
        PRIMARY KEY (account_id, entry)) PARTITION BY RANGE (entry);
    CREATE TABLE ledger_old PARTITION OF ledger FOR VALUES FROM (MINVALUE) TO (3);
    CREATE TABLE ledger_new PARTITION OF ledger FOR VALUES FROM (3) TO (MAXVALUE);
    CREATE TABLE customers (
        email text PRIMARY KEY,
        name varchar(80) NOT NULL,
        born date,
        tags text[] NOT NULL,
        profile jsonb);
    CREATE TABLE sessions (
        token bytea PRIMARY KEY,
        account_id bigint NOT NULL,
        score double precision NOT NULL,
        seconds time(3) NOT NULL,
        payload bytea);
    CREATE TABLE clicks (
        account_id bigint NOT NULL,
        page varchar(40) NOT NULL,
        weight real NOT NULL,
        at timestamp NOT NULL);
    CREATE INDEX ON clicks (account_id)"""

_FILL: dict[str, tuple[float, str]] = {
    "accounts": (
        0.2,
        (
            "SELECT n, 'Owner ' || n, 1000, (CASE n % 10 WHEN 9 THEN 'frozen' ELSE 'active' END)::account_status, "
            "'2026-01-01 00:00:00.123456+00'"
        ),
    ),
    "ledger": (
        0.4,
        (
            "SELECT 1 + n % {accounts}, n / {accounts}, (n % 2000 - 1000) / 100.0, 'opening ' || n, "
            "'2026-01-01'::timestamp + n * interval '1 second'"
        ),
    ),
    "customers": (
        0.15,
        (
            "SELECT (ARRAY['Anna', 'bob', 'Zoë', '李'])[1 + n % 4] || '.' || n || '@example.com', 'Müller ' || n, "
            "CASE WHEN n % 7 > 0 THEN date '1980-01-01' + n % 15000 END, ARRAY['new', 'vip'], "
            "CASE WHEN n % 5 > 0 THEN jsonb_build_object('visits', n, 'ratio', n / 7.0, 'tags', array['a']) END"
        ),
    ),
    "sessions": (
        0.15,
        (
            "SELECT substr(sha256(n::text::bytea), 1, 16), 1 + n % {accounts}, sqrt(n), "
            "time '00:00' + n % 86400 * interval '1 second', CASE WHEN n % 3 > 0 THEN sha256(n::text::bytea) END"
        ),
    ),
    "clicks": (
        0.1,
        (
            "SELECT 1 + n % {accounts}, '/page/' || n % 500, n / 3.0, "
            "'2026-01-01'::timestamp + n % 90000 * interval '1 second'"
        ),
    ),
}


def create(connection: psycopg.Connection[Any], rows: int) -> None:
    """Create the shop again, with about ``rows`` rows in all tables together. The rows are the same every time."""
    connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    connection.execute(f"CREATE SCHEMA {SCHEMA}")
    connection.execute(f"SET search_path TO {SCHEMA}")
    connection.execute("SET TimeZone TO 'UTC'")
    connection.execute(_TABLES)
    accounts = max(1, int(rows * _FILL["accounts"][0]))
    for table, (share, select) in _FILL.items():
        count = max(1, int(rows * share))
        connection.execute(
            f"INSERT INTO {table} {select.format(accounts=accounts)} FROM generate_series(1, {count}) AS numbers (n)"
        )
    for table in (*_FILL, "ledger_old", "ledger_new"):
        # A rewind needs whole old rows in the log. If they are missing, preflight's hint has this statement.
        connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        connection.execute(f"ANALYZE {table}")
