"""Labels that the server may take for each other. The oracle is the server, without strict mode."""

from __future__ import annotations

from airflow_provider_cdc.sources.mysql.tables.labels import may_be_alike
from harness.mysql_server import MysqlServer

LABELS = (
    "a", "A", "ä", "b", "", "i", "j", "v", "w", "ss", "ß", "aa", "å", "ae", "æ", "o", "ø", "б", "Б", "и", "й", "男",
    "女", "あ", "ア", "🍣", "🍺", "a\u200d", "\u0001", "1", "n", "ñ", "ch", "c h", "σ", "ς",
)  # fmt: skip


def test_labels_that_any_collation_takes_for_each_other_may_be_alike(mysql: MysqlServer) -> None:
    labels = ", ".join(["ROW(%s)"] * len(LABELS))
    pairs: set[tuple[str, str]] = set()
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW COLLATION WHERE Charset = 'utf8mb4'")
        for name, *_ in cursor.fetchall():
            cursor.execute(
                f"WITH label (one) AS (VALUES {labels}) SELECT a.one, b.one FROM label a JOIN label b "
                f"ON BINARY a.one <> BINARY b.one AND a.one COLLATE {name} = b.one COLLATE {name}",
                LABELS,
            )
            pairs |= {*cursor.fetchall()}
    assert ("a", "A") in pairs
    assert [pair for pair in pairs if not may_be_alike(pair)] == []
    assert not may_be_alike(("new", "open", "", "1", "2", "männlich", "weiblich", "б", "и", "男", "女"))
