"""The PostgreSQL tables of the benches: the shapes of `tables`, filled by the server itself."""

from __future__ import annotations

from harness.bench.tables import SCHEMA, Shape
from harness.messages import say
from harness.postgres_server import PostgresServer

SHAPES = {
    "narrow": Shape(
        "account int NOT NULL, amount numeric(12,2) NOT NULL, at timestamp NOT NULL",
        "n * 7919 % 100000, n * 31 % 10000000 / 100.0, timestamp '2024-01-01' + n * interval '1 second'",
        "account = account + 1",
    ),
    "mixed": Shape(
        "customer int NOT NULL, quantity smallint, price numeric(12,2) NOT NULL, score double precision NOT NULL, "
        "name varchar(80) NOT NULL, note text, created timestamp NOT NULL, day date NOT NULL, "
        "changed timestamptz NOT NULL, status text NOT NULL",
        "n * 7919 % 200000, CASE WHEN n % 10 > 0 THEN n % 1000 END, n * 31 % 10000000 / 100.0, sqrt(n), "
        "'Customer ' || lpad(to_hex(n * 2654435761 % 4294967296), 8, '0') || ' Müller', "
        "CASE WHEN n % 5 > 0 THEN 'note ' || n || ' — please ring twice' END, "
        "timestamp '2024-01-01' + n * interval '1000003 microseconds', date '2020-01-01' + (n % 2000)::int, "
        "timestamptz '2025-01-01' + n % 10000000 * interval '1 second', "
        "(ARRAY['new', 'paid', 'sent', 'returned'])[1 + n % 4]",
        "score = score + 1",
    ),
    "fat": Shape(
        "title varchar(200) NOT NULL, body text NOT NULL, payload jsonb NOT NULL, extra jsonb, "
        "updated timestamp NOT NULL",
        "'Title ' || n, repeat('paragraph ' || n || ' of the text; ', 10 + (n % 30)::int), "
        "jsonb_build_object('id', n, 'tags', jsonb_build_array('a', n % 7, n % 3 = 0), 'ratio', n / 7.0), "
        "CASE WHEN n % 3 = 0 THEN jsonb_build_array(n, n / 3.0, 'x') END, "
        "timestamp '2024-01-01' + n * interval '1 second'",
        "updated = updated + interval '1 second'",
    ),
    "taxi": Shape(
        "vendorid int, tpep_pickup_datetime timestamp, tpep_dropoff_datetime timestamp, "
        "passenger_count double precision, trip_distance double precision, ratecodeid double precision, "
        "store_and_fwd_flag varchar(1), pulocationid int, dolocationid int, payment_type bigint, "
        "fare_amount double precision, extra double precision, mta_tax double precision, tip_amount double precision, "
        "tolls_amount double precision, improvement_surcharge double precision, total_amount double precision, "
        "congestion_surcharge double precision, airport_fee double precision",
        "1 + n % 2, timestamp '2024-01-01' + n * interval '3 seconds', "
        "timestamp '2024-01-01' + (n * 3 + 300 + n * 7919 % 3600) * interval '1 second', "
        "CASE WHEN n % 20 > 0 THEN 1 + n % 6 END, n * 7919 % 3000 / 100.0, "
        "CASE WHEN n % 20 > 0 THEN 1 + (n % 25 = 0)::int END, "
        "CASE WHEN n % 100 = 0 THEN 'Y' WHEN n % 20 > 0 THEN 'N' END, 1 + n * 31 % 265, 1 + n * 7919 % 265, n % 5, "
        "3 + n * 31 % 7000 / 100.0, n % 3 / 2.0, 0.5, n * 17 % 1500 / 100.0, "
        "CASE WHEN n % 15 > 0 THEN 0 ELSE 6.94 END, 1, 8 + n * 37 % 9000 / 100.0, "
        "CASE WHEN n % 20 > 0 THEN 2.5 END, CASE WHEN n % 20 > 0 THEN 1.75 * (n % 12 = 0)::int END",
        "total_amount = total_amount + 1",
    ),
    "fhv": Shape(
        "dispatching_base_num varchar(6), pickup_datetime timestamp, dropoff_datetime timestamp, "
        "pulocationid double precision, dolocationid double precision, sr_flag int, affiliated_base_number varchar(6)",
        "'B' || lpad((n * 31 % 3500)::text, 5, '0'), timestamp '2024-01-01' + n * interval '1 second', "
        "timestamp '2024-01-01' + (n + 300 + n * 7919 % 3600) * interval '1 second', "
        "CASE WHEN n % 5 > 0 THEN 1 + n * 31 % 265 END, CASE WHEN n % 7 > 0 THEN 1 + n * 7919 % 265 END, "
        "CASE WHEN n % 4 = 0 THEN 1 END, 'B' || lpad((n * 17 % 3500)::text, 5, '0')",
        "sr_flag = coalesce(sr_flag, 0) + 1",
    ),
    "zones": Shape(
        "borough varchar(20) NOT NULL, zone varchar(60) NOT NULL, service_zone varchar(20) NOT NULL",
        "(ARRAY['Bronx', 'Brooklyn', 'Manhattan', 'Queens', 'Staten Island'])[1 + n % 5], 'Zone ' || n || ' East', "
        "CASE WHEN n % 4 > 0 THEN 'Boro Zone' ELSE 'Yellow Zone' END",
        "zone = zone || '*'",
    ),
}


def ensure_table(server: PostgresServer, shape: str, rows: int) -> str:
    """Return the name, with schema, of a table of this shape with the keys 1 to ``rows``. Fill it if it is missing."""
    name = f"{SCHEMA}.{shape}_{rows}"
    with server.connect() as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.execute("SET TimeZone TO 'UTC'")
        if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
            say(f"bench: filling {name}")
            with connection.transaction():
                connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, {SHAPES[shape].columns})")
                connection.execute(
                    f"INSERT INTO {name} SELECT n, {SHAPES[shape].values} FROM generate_series(1::bigint, {rows}) n"
                )
                connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        connection.execute(f"VACUUM (ANALYZE, FREEZE) {name}")
    return name


def churn(table: str, rows: int, changes: int, block: int) -> tuple[str, ...]:
    """Return statements, one per transaction, that update ``changes`` rows of ``table``, ``block`` neighbours each.

    Consecutive blocks are not neighbours in key order, and all blocks are visited in turn.
    """
    change = SHAPES[table.split(".")[1].split("_")[0]].change
    blocks = max(1, rows // block)
    return tuple(
        f"UPDATE {table} SET {change} WHERE id > {low} AND id <= {low + block}"
        for low in (number * 7919 % blocks * block for number in range(-(-changes // block)))
    )
