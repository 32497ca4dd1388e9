"""Common expressions of VIRTUAL columns: the log has the value that SELECT returns, whichever session wrote the row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.session import query
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import LogReading

COLUMNS = """
    id int PRIMARY KEY, qty int, `Price` decimal(10,2), tax decimal(5,2), u bigint unsigned, f float, first varchar(50),
    last varchar(50), email varchar(99), code char(10), st enum('new','paid','İ'), flags set('a','b','c'), d date,
    ordered datetime, created_at timestamp NULL, deleted_at datetime, t time, uid binary(16), ip varbinary(16),
    ip4 int unsigned, doc json, bl blob, active tinyint(1), ut varchar(38), pt point, gp point SRID 4326
"""
NAMES = """
    id, qty, Price, tax, u, f, first, last, email, code, st, flags, d, ordered, created_at, deleted_at, t, uid,
    ip, ip4, doc, bl, active, ut, pt, gp
"""
_JSON = '{"name": "Nä😀", "n": 5, "p": "1.5", "flag": "TRUE", "at": "2024-02-01 01:02:03", "tags": [1, 2]}'
_ODD_JSON = '{"name": null, "n": -7, "p": 12345678.125, "flag": "İ", "at": null, "tags": []}'
_PLACES = "POINT(1.5, -1.25), ST_GeomFromText('POINT(40.5 -73.25)', 4326)"
ROWS = (
    f"""(1, 7, 12.50, 7, 9, 1.25, 'Ann', 'ann', 'A.I@x.com', 'ab', 'paid', 'a,b', '2024-02-28', '2024-02-28 23:59:59',
        '2024-01-01 23:30:00', NULL, '23:00:00', x'000102030405060708090a0b0c0d0e0f', x'01020304', 16909060,
        '{_JSON}', 'hello', 1, '6ccd780c-baba-1026-9564-5b8c656024db', {_PLACES})""",
    f"""(2, -2147483648, -99999999.99, -999.99, 9223372036854775807, -3.4e38, 'I', 'ı', 'é😀@Ex.ÇOM@ ', 'é x', 'İ',
        '', '1000-01-01', '9999-12-31 23:59:59', '2038-01-19 03:14:07', '9999-12-31 00:00:00', '-838:59:59',
        REPEAT(x'ff', 16), CONCAT(REPEAT(x'00', 15), x'01'), 4294967295, '{_ODD_JSON}', REPEAT(x'00ff', 60), -128,
        '{{6CCD780C-BABA-1026-9564-5B8C656024DB}}', {_PLACES})""",
    f"""(3, 0, 0, 0, 1, 0.1, '', 'a_b%', '', '', 'new', 'c', '2024-12-31', '2020-01-01', '1970-01-01 00:00:01',
        '2024-02-29 12:00:00', '00:00:00', REPEAT(x'00', 16), REPEAT(x'20', 16), 0, '{_JSON}', '', 0,
        '6ccd780cbaba102695645b8c656024db', {_PLACES})""",
    f"(4{', NULL' * 23}, {_PLACES})",
)

ACCEPTED = r"""
    BIN_TO_UUID(uid); BIN_TO_UUID(uid, 1); INSERT(INSERT(INSERT(INSERT(HEX(uid),9,0,'-'),14,0,'-'),19,0,'-'),24,0,'-')
    INET6_NTOA(ip); INET_NTOA(ip4); PRICE*QTY; COALESCE(deleted_at, '1970-01-01 00:00:00')
    IFNULL(deleted_at, CAST('9999-12-31' AS DATETIME)); DATE_FORMAT(ordered,'%Y-%m'); EXTRACT(YEAR_MONTH FROM ordered)
    DAYOFWEEK(d); WEEKDAY(d); WEEK(d,3); WEEK(d); d + INTERVAL 30 DAY; LAST_DAY(d); DATEDIFF(d, '2020-01-01')
    TIMESTAMPDIFF(DAY, d, ordered); TIMESTAMPDIFF(SECOND, ordered, deleted_at); TIME_TO_SEC(t)
    JSON_VALUE(doc, '$.name'); JSON_VALUE(doc, '$.name' RETURNING CHAR(50)); doc->>'$.flag' = 'true'
    SUBSTR(email, LOCATE('@', email)+1); REGEXP_REPLACE(email,'[^a-z]',''); TRIM(code); ST_X(pt); ST_Latitude(gp)
    CASE st WHEN 'paid' THEN 'p' ELSE 'o' END; FORMAT(Price,2); u - 1; POW(qty,2); SQRT(qty); LN(ABS(qty) + 1)
    GREATEST(qty,0); LEAST(qty,id); TO_BASE64(bl); email LIKE '%@x.com'; first=last; FIND_IN_SET('a',flags)
    FIELD(st,'new','paid'); SOUNDEX(last); STRCMP(first,last); ELT(qty,'a','b'); CONVERT(first USING latin1)
    NULLIF(first,''); CONCAT(id,'_',IFNULL(deleted_at,0)); CONCAT(first,' ',last); CONCAT_WS(' ', first, last)
    LOWER(email); Price*qty; ROUND(Price*qty,2); Price - IFNULL(tax,0); IF(deleted_at IS NULL,1,NULL)
    (deleted_at IS NULL)
    CAST(ordered AS DATE); DATE(ordered); YEAR(ordered); YEAR(ordered)*100+MONTH(ordered); HOUR(ordered); QUARTER(d)
    doc->>'$.name'; JSON_UNQUOTE(JSON_EXTRACT(doc,'$.name')); doc->'$.n'; CAST(doc->>'$.n' AS SIGNED); JSON_LENGTH(doc)
    JSON_CONTAINS(doc, '1', '$.tags'); CAST(doc->>'$.p' AS DECIMAL(10,2)); SHA2(CONCAT(first,last),256); CRC32(email)
    SUBSTRING_INDEX(email,'@',-1); REPLACE(REPLACE(LOWER(TRIM(first)),'-',''),'/',''); IF(st='paid','y','n')
    CASE WHEN qty>10 THEN 'many' ELSE 'few' END; active=1; st+0; IF(active, email, NULL); LPAD(id,8,'0')
    CONCAT('ORD-', id); qty DIV 2; qty % 7; ISNULL(first); ASCII(first); UCASE(CONCAT(LEFT(first,1),'.',last))
    CONCAT('https://x/', id, '?q=', first); f*1.5; CAST(id AS CHAR); id*1000000+qty; IFNULL(email,'')
    COALESCE(first, last, 'none'); LENGTH(first)-LENGTH(REPLACE(first,' ',''))
    CASE WHEN deleted_at IS NULL AND active = 1 THEN 1 END; IF(deleted_at IS NULL, email, NULL)
    CONV(SUBSTR(SHA2(email,256),1,8),16,10)
    IF(deleted_at IS NULL, 0, id); LOWER(HEX(uid)); SHA2(HEX(bl),256); CONCAT(qty,id); DATE_FORMAT(d,'%Y-%m-01')
    GREATEST(first,last); first IN (last,'x'); REVERSE(first); UPPER(st); f/2; qty/f; doc->'$.n' > 1; NOT active
    first NOT LIKE 'a%'; qty NOT BETWEEN 1 AND 5; qty IS TRUE; d BETWEEN '2020-01-01' AND '2025-01-01'; d < ordered
"""
ACCEPTED_BYTES = "COMPRESS(email); UUID_TO_BIN(ut); UNHEX(HEX(uid)); uid; JSON_UNQUOTE(doc->'$.name')"
ACCEPTED_DATES = "LAST_DAY(d); d - INTERVAL WEEKDAY(d) DAY; DATE_FORMAT(d,'%Y-%m-01'); CAST(ordered AS DATE)"

REFUSED = {
    "Price*(1+tax/100)": "div_precision_increment",
    "qty/2": "div_precision_increment",
    "ROUND(Price/3, 2)": "div_precision_increment",
    "DATE(created_at)": "time_zone",
    "MINUTE(created_at)": "time_zone",
    "CAST(doc->>'$.at' AS DATETIME)": "sql_mode and time_zone",
    "RIGHT(code,4)": "PAD_CHAR_TO_FULL_LENGTH",
    "CONCAT('A', code)": "PAD_CHAR_TO_FULL_LENGTH",
    "code = 'ab'": "PAD_CHAR_TO_FULL_LENGTH",
    "DATE_FORMAT(d, '%M')": "lc_time_names",
    "EXTRACT(WEEK FROM d)": "default_week_format",
    "YEAR(t)": "sql_mode and time_zone",
    "(u - 1) * qty": "NO_UNSIGNED_SUBTRACTION",
    r"REGEXP_REPLACE(email, '\\d', '')": "not understood",
    "email LIKE last": "NO_BACKSLASH_ESCAPES",
    "CONCAT(qty,'ı') = '7I'": "the session's collation",
    "HEX(uid) = 'ff'": "the session's collation",
    "GREATEST('a', qty)": "the session's collation",
    "LOWER(CONCAT('İ', qty))": "the session's collation",
    "LOWER(CONCAT(first, CAST(qty AS CHAR)))": "the session's collation",
    "CAST(bl AS CHAR)": "sql_mode",
    "d > first": "sql_mode and time_zone",
    "IF(active, d, t)": "time_zone",
    "COALESCE(t, ordered)": "time_zone",
    "CONV(qty, 10, 16) + 0": "utf16",
    "CHAR_LENGTH(BIN(qty))": "utf16",
    "JSON_ARRAY(OCT(qty))": "utf16",
    "+".join(["qty"] * 400): "not understood",
}

SESSIONS = (
    "sql_mode = ''",
    "sql_mode = 'TRADITIONAL', time_zone = '-11:00', timestamp = 1000000",
    "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,TIME_TRUNCATE_FRACTIONAL,NO_UNSIGNED_SUBTRACTION,REAL_AS_FLOAT'",
    "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE'",
    "sql_mode = '', collation_connection = 'latin5_turkish_ci', character_set_client = 'latin5'",
    "sql_mode = '', collation_connection = 'utf16_general_ci', time_zone = '+05:30'",
    "sql_mode = '', collation_connection = 'gbk_chinese_ci', character_set_client = 'gbk'",
    "sql_mode = '', collation_connection = 'binary', character_set_client = 'binary', character_set_results = NULL",
    "default_collation_for_utf8mb4 = 'utf8mb4_general_ci', character_set_database = 'latin1'",
    "lc_time_names = 'de_DE', default_week_format = 3, div_precision_increment = 0, group_concat_max_len = 4",
    "block_encryption_mode = 'aes-256-cbc', sql_auto_is_null = 1, max_error_count = 0",
)


def expressions(text: str) -> Iterator[str]:
    for line in text.strip().splitlines():
        yield from line.strip().split("; ")


@pytest.fixture
def source(mysql: MysqlServer) -> MysqlSource:
    return MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))


def create(mysql: MysqlServer, schema: str, virtual: list[tuple[str, str]]) -> list[str]:
    columns = [f"v{at} {kind} AS ({expression})" for at, (kind, expression) in enumerate(virtual)]
    mysql.query(f"CREATE TABLE {schema}.t ({', '.join([COLUMNS, *columns])})")
    return [f"v{at}" for at in range(len(virtual))]


@pytest.mark.slow
def test_what_every_session_writes_is_what_a_select_of_ours_shows(
    source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    virtual = [("TEXT", one) for one in expressions(ACCEPTED)]
    virtual += [("BLOB", one) for one in expressions(ACCEPTED_BYTES)]
    virtual += [("DATE", one) for one in expressions(ACCEPTED_DATES)]
    names = create(mysql, schema, virtual)
    source.preflight([f"{schema}.t"])
    mysql.query(f"INSERT INTO {schema}.t ({NAMES}) VALUES {', '.join(ROWS)}")

    def shown() -> dict[int, tuple[Any, ...]]:
        with mysql.connect(charset="utf8mb4") as ours:
            query(ours, "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
            return {row[0]: row[1:] for row in query(ours, f"SELECT id, {', '.join(names)} FROM {schema}.t")}

    for session in SESSIONS:
        expected = shown()
        reading = LogReading(mysql, schema, "t")
        with mysql.connect(database=schema) as connection:
            query(connection, f"SET {session}")
            # So that it is this session that has the server read the expressions.
            mysql.query(f"FLUSH TABLES {schema}.t")
            query(connection, "UPDATE t SET tax = 1 WHERE id IN (1, 3)")
            query(connection, "DELETE FROM t WHERE id IN (2, 4)")
            query(connection, f"INSERT INTO t ({NAMES}) SELECT {NAMES.replace('id,', '4,', 1)} FROM t WHERE id = 3")
            window = reading.read(forward=True)
        found = shown()
        for which, images in (expected, window.before["t"]), (found, window.after["t"]):
            for row, values in which.items():
                logged = images[key(row)]
                assert logged is not None
                pairs = zip(virtual, values, logged[-len(names) :], strict=True)
                assert [(one, a, b) for one, a, b in pairs if a != b] == [], (session, row)
        mysql.query(f"DELETE FROM {schema}.t")
        mysql.query(f"INSERT INTO {schema}.t ({NAMES}) VALUES {', '.join(ROWS)}")


def test_what_sessions_may_see_differently_is_refused_with_the_setting_that_decides(
    source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    names = create(mysql, schema, [("TEXT", one) for one in REFUSED])
    with pytest.raises(PreflightError) as raised:
        source.preflight([f"{schema}.t"])
    told = {problem.where.rpartition(".")[2]: problem for problem in raised.value.problems}
    for name, (expression, reason) in zip(names, REFUSED.items(), strict=True):
        assert reason in told[name].what, expression
        assert "leave the column out" in told[name].hint


def test_what_is_made_of_a_virtual_column_that_is_left_out(
    source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    """Also whether it is NULL, and through columns that the session cannot change."""
    local = "local DATE AS (DATE(created_at)), part INT AS (YEAR(local)), plain INT AS (qty + 1), free INT AS (plain)"
    tested = "third INT AS (NULLIF(qty, qty / 3)), missing INT AS (third IS NULL), seen INT AS (created_at IS NULL)"
    hour = "hour TIME AS (SEC_TO_TIME(qty)), that_year YEAR AS (hour), of_today YEAR AS (SEC_TO_TIME(qty))"
    mysql.query(f"CREATE TABLE {schema}.t ({COLUMNS}, {local}, {tested}, {hour})")
    read = Selection(columns=("id", "part", "free", "missing", "seen", "that_year", "of_today"))
    with pytest.raises(PreflightError) as raised:
        source.preflight([f"{schema}.t"], parts=lambda name: read)
    told = {problem.where.rpartition(".")[2]: problem.what for problem in raised.value.problems}
    assert told.keys() == {"part", "missing", "that_year", "of_today"}
    assert "the expression uses the VIRTUAL column local: the expression uses a TIMESTAMP" in told["part"]
