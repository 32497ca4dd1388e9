"""Which tables a statement writes and reads, as far as its text alone shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Write, write_of
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

NAMES = TrackedNames([TableName("shop", "orders"), TableName("shop", "lines")])
TARGET = TableName("percona", "checksums")


def of(text: str, **session: Any) -> Write | None:
    return write_of(Statement(text, "shop", schemas=frozenset({"percona", "shop"}), **session), NAMES)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("REPLACE INTO percona.checksums SELECT 'a', COUNT(*) FROM orders", []),
        ("REPLACE INTO percona.checksums (`a`, b) SELECT 1, 2 FROM shop.x AS y WHERE y.a IN (1, 2)", ["shop.x"]),
        ("INSERT IGNORE INTO percona.checksums VALUES (1, (SELECT MAX(a) FROM `x`)), (2, 3)", ["shop.x"]),
        ("INSERT INTO percona.checksums SET a = 1 ON DUPLICATE KEY UPDATE a = VALUES(a)", []),
        ("DELETE FROM percona.checksums", []),
        ("delete from `percona`.`checksums` where db = 'a;b' -- and so on", []),
        ("UPDATE percona.checksums SET a = (SELECT COUNT(*) FROM x USE INDEX (i) LIMIT 1) WHERE b > 1", ["shop.x"]),
        ("REPLACE INTO percona.checksums SELECT a FROM lines UNION SELECT b FROM z.x", ["z.x"]),
        ("REPLACE INTO percona.checksums SELECT 1.5, a FROM Orders", ["shop.Orders"]),
    ],
)
def test_what_a_statement_names(text: str, read: Sequence[str]) -> None:
    assert of(text) == Write(TARGET, tuple(map(TableName.parse, read)))


@pytest.mark.parametrize(
    "text",
    [
        "REPLACE INTO checksums SELECT 1",
        "REPLACE INTO shop.checksums SELECT 1",
        "REPLACE INTO SHOP.checksums SELECT 1",
        "REPLACE INTO `per.cona`.checksums SELECT 1",
        "REPLACE INTO percona.checksums SELECT 1 FROM `z.y`.x",
        "REPLACE percona.checksums SELECT 1",
        "REPLACE INTO percona.checksums PARTITION (p) SELECT 1",
        "REPLACE INTO percona.checksums TABLE x",
        "REPLACE INTO percona.checksums WITH c AS (SELECT 1) SELECT * FROM c",
        "WITH c AS (SELECT 1) DELETE FROM percona.checksums",
        "REPLACE INTO percona.checksums SELECT 1 FROM (SELECT 1) AS x",
        "REPLACE INTO percona.checksums SELECT 1 FROM orders, x",
        "REPLACE INTO percona.checksums SELECT 1 FROM orders CROSS JOIN x",
        "REPLACE INTO percona.checksums SELECT 1 FROM orders UNION TABLE x",
        "REPLACE INTO percona.checksums SELECT f(1)",
        "REPLACE INTO percona.checksums SELECT `max`(1) FROM orders",
        "REPLACE INTO percona.checksums SELECT MAX (1) FROM orders",
        "REPLACE INTO percona.checksums SELECT shop.MAX(1) FROM orders",
        "REPLACE INTO percona.checksums SELECT SLEEP(1) FROM orders",
        "REPLACE INTO percona.checksums SELECT LOAD_FILE('x')",
        "REPLACE INTO percona.checksums SELECT @x := 1",
        "REPLACE INTO percona.checksums SELECT 1 INTO OUTFILE 'x'",
        "REPLACE INTO percona.checksums SELECT a FROM orders INTO OUTFILE 'x'",
        "REPLACE INTO percona.checksums SELECT /*+ SET_VAR(foreign_key_checks=OFF) */ 1",
        "REPLACE INTO percona.checksums SELECT /*!80000 f(1), */ 1",
        "REPLACE INTO percona.checksums SELECT {ts '2026-01-01'}",
        "REPLACE INTO percona.checksums SELECT 1; DELETE FROM orders",
        "REPLACE INTO percona.checksums SELECT shop.KEY(1)",
        "REPLACE INTO percona.checksums SELECT 1.5FROM x",
        "REPLACE INTO percona.checksums SELECT 1.e5FROM x",
        "REPLACE INTO percona.checksums SELECT 1e5FROM x",
        "REPLACE INTO percona.checksums SELECT 5*/*'*/f(1)/*'*/",
        "UPDATE percona.checksums AS c SET a = 1",
        "UPDATE percona.checksums, orders SET a = 1",
        "DELETE percona.checksums FROM percona.checksums JOIN orders",
        "DELETE FROM percona.checksums AS c WHERE 1",
        "DELETE FROM percona.checksums USING percona.checksums JOIN orders",
        "LOAD DATA INFILE 'x' INTO TABLE percona.checksums",
        "CREATE TABLE percona.checksums SELECT 1",
        "CALL p()",
    ],
)
def test_what_may_write_to_more(text: str) -> None:
    assert of(text) is None


def test_what_the_server_may_have_read_differently() -> None:
    text = "REPLACE INTO percona.checksums SELECT 1"
    assert of(text) is not None
    assert of(text, ansi_quotes=True) is None
    assert of(text, backslash_escapes=False) is None
    assert of(text, charset="gbk") is None
    assert of(text, charset="") is None
    assert write_of(Statement(text, "shop", schemas=None), NAMES) is None
