"""The tables of the benches: the shapes, filled by the server itself, and kept for the next bench."""

from __future__ import annotations

from dataclasses import dataclass

from harness.messages import say
from harness.mysql_server import MysqlServer

SCHEMA = "bench"
TOUCH_BATCH = 200_000
"""Number of keys in the range of one update, so that a transaction fits in memory."""


@dataclass(frozen=True)
class Shape:
    """``columns`` defines the columns after the key ``id``. ``values`` computes them from the row's number ``n``.

    ``change`` is an assignment that changes any row.
    """

    columns: str
    values: str
    change: str


def _wide() -> Shape:
    kinds = [
        ("INT NOT NULL", "n * {k} % 100000"),
        ("BIGINT NULL", "IF(n % 10, n * {k}, NULL)"),
        ("DOUBLE NOT NULL", "n / {k}"),
        ("DECIMAL(12,2) NOT NULL", "n * {k} % 100000000 / 100"),
        ("VARCHAR(40) NOT NULL", "CONCAT('value ', n * {k} % 100000)"),
        ("DATETIME NOT NULL", "'2020-01-01' + INTERVAL n * {k} % 100000000 SECOND"),
    ]
    chosen = [(f"c{number}", *kinds[number % len(kinds)]) for number in range(59)]
    return Shape(
        ", ".join(f"{name} {definition}" for name, definition, _ in chosen),
        ", ".join(value.format(k=7 + 2 * number) for number, (_, _, value) in enumerate(chosen)),
        "c0 = c0 + 1",
    )


SHAPES = {
    "narrow": Shape(
        "account INT NOT NULL, amount DECIMAL(12,2) NOT NULL, at DATETIME NOT NULL",
        "n * 7919 % 100000, n * 31 % 10000000 / 100, '2024-01-01' + INTERVAL n SECOND",
        "account = account + 1",
    ),
    "mixed": Shape(
        "customer INT NOT NULL, quantity SMALLINT UNSIGNED NULL, price DECIMAL(12,2) NOT NULL, score DOUBLE NOT NULL, "
        "name VARCHAR(80) NOT NULL, note TEXT NULL, created DATETIME(6) NOT NULL, day DATE NOT NULL, "
        "changed TIMESTAMP NOT NULL, status ENUM('new','paid','sent','returned') NOT NULL",
        "n * 7919 % 200000, IF(n % 10, n % 1000, NULL), n * 31 % 10000000 / 100, SQRT(n), "
        "CONCAT('Customer ', LPAD(HEX(n * 2654435761 % 4294967296), 8, '0'), ' Müller'), "
        "IF(n % 5, CONCAT('note ', n, ' — please ring twice'), NULL), '2024-01-01' + INTERVAL n * 1000003 MICROSECOND, "
        "'2020-01-01' + INTERVAL n % 2000 DAY, '2025-01-01' + INTERVAL n % 10000000 SECOND, 1 + n % 4",
        "score = score + 1",
    ),
    "wide": _wide(),
    "fat": Shape(
        "title VARCHAR(200) NOT NULL, body TEXT NOT NULL, payload JSON NOT NULL, extra JSON NULL, "
        "updated DATETIME(3) NOT NULL",
        "CONCAT('Title ', n), REPEAT(CONCAT('paragraph ', n, ' of the text; '), 10 + n % 30), "
        "JSON_OBJECT('id', n, 'tags', JSON_ARRAY('a', n % 7, n % 3 = 0), 'ratio', n / 7, "
        "'address', JSON_OBJECT('city', 'Zürich', 'zip', n % 10000, 'street', CONCAT('Street ', n))), "
        "IF(n % 3, NULL, JSON_ARRAY(n, n / 3, 'x')), '2024-01-01' + INTERVAL n SECOND",
        "updated = updated + INTERVAL 1 SECOND",
    ),
    # The columns of the yellow taxi trips that New York City publishes.
    "taxi": Shape(
        "vendorid INT NULL, tpep_pickup_datetime DATETIME NULL, tpep_dropoff_datetime DATETIME NULL, "
        "passenger_count DOUBLE NULL, trip_distance DOUBLE NULL, ratecodeid DOUBLE NULL, "
        "store_and_fwd_flag VARCHAR(1) NULL, pulocationid INT NULL, dolocationid INT NULL, payment_type BIGINT NULL, "
        "fare_amount DOUBLE NULL, extra DOUBLE NULL, mta_tax DOUBLE NULL, tip_amount DOUBLE NULL, "
        "tolls_amount DOUBLE NULL, improvement_surcharge DOUBLE NULL, total_amount DOUBLE NULL, "
        "congestion_surcharge DOUBLE NULL, airport_fee DOUBLE NULL",
        "1 + n % 2, '2024-01-01' + INTERVAL n * 3 SECOND, "
        "'2024-01-01' + INTERVAL n * 3 + 300 + n * 7919 % 3600 SECOND, IF(n % 20, 1 + n % 6, NULL), "
        "n * 7919 % 3000 / 100, IF(n % 20, 1 + (n % 25 = 0), NULL), "
        "IF(n % 100, IF(n % 20, 'N', NULL), 'Y'), 1 + n * 31 % 265, 1 + n * 7919 % 265, n % 5, "
        "3 + n * 31 % 7000 / 100, n % 3 / 2, 0.5, n * 17 % 1500 / 100, IF(n % 15, 0, 6.94), 1, "
        "8 + n * 37 % 9000 / 100, IF(n % 20, 2.5, NULL), IF(n % 20, 1.75 * (n % 12 = 0), NULL)",
        "total_amount = total_amount + 1",
    ),
    # The columns of the for-hire trips that it publishes.
    "fhv": Shape(
        "dispatching_base_num VARCHAR(6) NULL, pickup_datetime DATETIME NULL, dropoff_datetime DATETIME NULL, "
        "pulocationid DOUBLE NULL, dolocationid DOUBLE NULL, sr_flag INT NULL, affiliated_base_number VARCHAR(6) NULL",
        "CONCAT('B', LPAD(n * 31 % 3500, 5, '0')), '2024-01-01' + INTERVAL n SECOND, "
        "'2024-01-01' + INTERVAL n + 300 + n * 7919 % 3600 SECOND, IF(n % 5, 1 + n * 31 % 265, NULL), "
        "IF(n % 7, 1 + n * 7919 % 265, NULL), IF(n % 4, NULL, 1), CONCAT('B', LPAD(n * 17 % 3500, 5, '0'))",
        "sr_flag = COALESCE(sr_flag, 0) + 1",
    ),
    # The columns of its taxi zones.
    "zones": Shape(
        "borough VARCHAR(20) NOT NULL, zone VARCHAR(60) NOT NULL, service_zone VARCHAR(20) NOT NULL",
        "ELT(1 + n % 5, 'Bronx', 'Brooklyn', 'Manhattan', 'Queens', 'Staten Island'), CONCAT('Zone ', n, ' East'), "
        "IF(n % 4, 'Boro Zone', 'Yellow Zone')",
        "zone = CONCAT(zone, '*')",
    ),
}


def ensure_table(server: MysqlServer, shape: str, rows: int) -> str:
    """Return the name, with schema, of a table of this shape with the keys 1 to ``rows``. Fill it if it is missing.

    Filling is not logged, because the binary log is for the bench itself.
    """
    name = f"{shape}_{rows}"
    with server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0, time_zone = '+00:00', cte_max_recursion_depth = 1000000000")
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {SCHEMA} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {SCHEMA}")
        if not cursor.execute("SHOW TABLES LIKE %s", (name.replace("_", r"\_"),)):
            say(f"bench: filling {SCHEMA}.{name}")
            cursor.execute("DROP TABLE IF EXISTS filling")
            cursor.execute(f"CREATE TABLE filling (id BIGINT NOT NULL PRIMARY KEY, {SHAPES[shape].columns})")
            cursor.execute(
                "INSERT INTO filling WITH RECURSIVE numbers (n) AS "
                f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows}) "
                f"SELECT n, {SHAPES[shape].values} FROM numbers"
            )
            cursor.execute(f"RENAME TABLE filling TO {name}")
        cursor.execute(f"ANALYZE NO_WRITE_TO_BINLOG TABLE {name}")
    return f"{SCHEMA}.{name}"


def touch(table: str, rows: int, touched: int, place: str) -> tuple[str, ...]:
    """Return statements that update ``touched`` of the keys 1 to ``rows``."""
    if not touched:
        return ()
    change = SHAPES[table.split(".")[1].split("_")[0]].change
    first, step = (1, rows // touched) if place == "scattered" else (rows - touched + 1, 1)
    last = first + step * touched
    return tuple(
        f"UPDATE {table} SET {change} WHERE id >= {low} AND id < {min(low + TOUCH_BATCH, last)} "
        f"AND (id - {first}) % {step} = 0"
        for low in range(first, last, TOUCH_BATCH)
    )
