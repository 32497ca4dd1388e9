"""A condition on the key makes MySQL read that range of it, and no more."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_cdc.core.condition_text import parse
from airflow_provider_cdc.core.options import LockPolicy
from airflow_provider_cdc.core.selection import Selection
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

ROWS = 20_000


def test_one_percent_of_a_table_is_read_where_one_percent_is_copied(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, day DATE, note VARCHAR(40))")
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET cte_max_recursion_depth = 100000")
        cursor.execute(
            f"INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "
            "SELECT i, DATE '2020-01-01' + INTERVAL i DAY, REPEAT('x', 40) FROM n"
        )
        cursor.execute("ANALYZE TABLE t")
    source = MysqlSource(settings_of(mysql))
    plans = source.preflight([f"{schema}.t"])
    (whole,) = source.tables_of(plans)

    def read(condition: str) -> tuple[int, int]:
        """The rows that the server sends, and those that it looks at."""
        table = replace(whole, selection=Selection(parse(condition)))
        chunks = source.plan_chunks(whole, 1000)
        assert len(chunks) > 10
        with source.reader(table, "watermark", LockPolicy()) as reader:
            before = looked_at()
            sent = sum(batch.num_rows for chunk in chunks for batch in reader.read(chunk))
            return sent, looked_at() - before

    def looked_at() -> int:
        return int(mysql.query("SHOW GLOBAL STATUS LIKE 'Innodb_rows_read'")[0][1])

    sent, seen = read("id > 19800 AND note LIKE 'x%'")
    assert sent == 200
    assert seen < 2 * 200
    sent, seen = read("day < '2020-01-11' OR id = 20000")
    assert sent == 10
    assert seen >= ROWS
