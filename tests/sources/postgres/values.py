"""Hard values of every type, as SQL literals: the values that a column declared with the type can hold."""

from __future__ import annotations

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'so ''so"', 'ä,b');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE nest AS (p pair, q pair[], r timestamptz);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE DOMAIN age AS int CHECK (VALUE >= 0);
CREATE DOMAIN price AS numeric(12, 3);
CREATE DOMAIN fair AS price CHECK (VALUE > 0);
CREATE DOMAIN note AS varchar(20);
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN ages AS age[];
CREATE DOMAIN couple AS pair;
CREATE DOMAIN birth AS date;
"""

LONG = "repeat('0123456789abcdef ä', 60000)"
RANDOM = "(SELECT string_agg(md5(g::text), '' ORDER BY g) FROM generate_series(1, 3000) g)"

CASES: dict[str, list[str]] = {
    "int2": ["0", "-1", "32767", "-32768"],
    "int4": ["0", "-1", "2147483647", "-2147483648"],
    "int8": ["0", "-1", "9223372036854775807", "-9223372036854775808"],
    "float4": ["0", "'-0'", "0.1", "'NaN'", "'Infinity'", "'-Infinity'", "1e-45", "3.4028235e38", "16777217"],
    "float8": [
        "0",
        "'-0'",
        "0.1",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "5e-324",
        "1.7976931348623157e308",
        "2.2250738585072011e-308",
        "9007199254740993",
        "'Infinity'::float8 * 2 - 1e308 / 3",
    ],
    "bool": ["true", "false"],
    "numeric(5,2)": ["0", "-0.01", "999.99", "-999.99", "0.1"],
    "numeric(38,0)": [
        "'99999999999999999999999999999999999999'",
        "'-99999999999999999999999999999999999999'",
        "0",
        "7",
    ],
    "numeric(38,38)": ["'0.99999999999999999999999999999999999999'", "'-0.00000000000000000000000000000000000001'"],
    "numeric(18,18)": ["'0.999999999999999999'", "0"],
    "numeric(19,18)": ["'9.999999999999999999'", "1"],
    "numeric(38,18)": ["'12345678901234567890.123456789012345678'"],
    "numeric(1,0)": ["-9", "0", "9"],
    "numeric": ["0", "0.000", "1.10", "'NaN'", "'Infinity'", "'-Infinity'", "1e400", "-1e-400", "1e16383"],
    "numeric(50,2)": ["'123456789012345678901234567890123456789012345678.12'", "'NaN'"],
    "numeric(5,-2)": ["1234500", "-99900", "'NaN'"],
    "numeric(2,5)": ["0.00012", "-0.00099"],
    "text": ["''", "'ä€😀'", "E'\\n\\t\\\\N\\\\.'", "'NULL'", "'\"q\" ''s'''", LONG, RANDOM],
    "varchar(9)": ["''", "'  x  '", "'äöü'"],
    "char(4)": ["''", "'x'", "'ä'", "'abcd'"],
    "name": ["''", "'pg'", "'ä b'"],
    '"char"': ["'x'", "''", "E'\\\\377'"],
    "bytea": ["''", "'\\x00ff5c'", "decode(repeat('00', 300000), 'hex')", "'\\x5c785c78'"],
    "date": ["'2024-02-29'", "'0001-01-01'", "'0001-12-31 BC'", "'4714-11-24 BC'", "'5874897-12-31'", "'10000-01-01'"],
    "timestamp": [
        "'2024-02-29 23:59:59.999999'",
        "'0001-01-01'",
        "'0044-03-15 12:00:00.5 BC'",
        "'4714-11-24 00:00:00 BC'",
        "'294247-01-10 04:00:54.775807'",
        "'1969-12-31 23:59:59.999999'",
    ],
    "timestamp(0)": ["'2024-02-29 23:59:59.6'"],
    "timestamptz": [
        "'2024-03-31 02:30:00+02'",
        "'0044-03-15 12:00:00.5+00 BC'",
        "'4714-11-24 00:00:00+00 BC'",
        "'294247-01-10 04:00:54.775807+00'",
        "'1883-11-18 12:03:57 America/New_York'",
    ],
    "time": ["'00:00:00'", "'23:59:59.999999'", "'12:34:56.7'"],
    "timetz": ["'24:00:00+00'", "'12:34:56.789-15:59'", "'00:00:00+15:59:59'"],
    "interval": [
        "'0'",
        "'1 year -2 mons +3 days -04:05:06.000007'",
        "'-178000000 years'",
        "'24:00:00'",
        "'1 day'",
        "'-0.000001 s'",
    ],
    "uuid": [
        "'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "'01234567-89ab-cdef-fedc-ba9876543210'",
    ],
    "json": ['\'{"a" :  1, "a":2}\'', "'null'", "'\"\\u00e4\"'", "'[1e400]'"],
    "jsonb": ['\'{"a" :  1, "a":2}\'', "'null'", "'\"ä\"'", "'[1.10, 1e400]'"],
    "mood": ["'sad'", "'so ''so\"'", "'ä,b'"],
    "feeling": ["'sad'", "'ä,b'"],
    "age": ["0", "2147483647"],
    "price": ["-0.001", "999999999.999"],
    "fair": ["0.001"],
    "note": ["''", "'x  '"],
    "birth": ["'2000-02-29'"],
    "ages": ["'{}'", "'{1,NULL,3}'"],
    "couple": ["'(1,x)'", "'(,)'"],
    "int4[]": ["'{}'", "'{1,NULL,3}'", "'[2:3][-1:0]={{1,2},{3,4}}'", "'{{{1}}}'"],
    "text[]": ["'{}'", "ARRAY['', 'NULL', 'a,b', 'q\"', E'b\\\\', ' x ', NULL, 'ä']", "ARRAY[" + RANDOM + "]"],
    "float8[]": ["'{NaN,Infinity,-0,0.1}'"],
    "bytea[]": ["ARRAY['\\x00ff'::bytea]"],
    "timestamptz[]": ["'{infinity,2024-03-31 02:30:00+02,0044-03-15 12:00:00+00 BC}'"],
    "numeric(5,2)[]": ["'{1.1,NaN}'"],
    "mood[]": ["ARRAY['sad', 'so ''so\"', 'ä,b']::mood[]"],
    "bool[]": ["'{t,f,NULL}'"],
    "pair": ["ROW(1, 'x')", "ROW(NULL, NULL)", "ROW(NULL, '')", "ROW(-1, 'a,\"b\" (c) \\ ''d''')"],
    "pair[]": ["ARRAY[ROW(1, 'x'), ROW(NULL, NULL), NULL]::pair[]", "'{}'"],
    "nest": [
        "ROW(ROW(1, 'q\"'), ARRAY[ROW(2, 'a b'), NULL]::pair[], '2024-01-01 00:00:00+05')",
        "ROW(NULL, NULL, NULL)",
    ],
    "int4range": ["'empty'", "'[1,5)'", "'(,)'", "'[1,1]'"],
    "tstzrange": ["'[2024-01-01 00:00:00+03,infinity)'", "'[-infinity,)'"],
    "numrange": ["'(1.10,2.200]'"],
    "span": ["'[-0,0.1)'", "'(-Infinity,NaN]'"],
    "int8multirange": ["'{}'", "'{[1,3),[5,)}'"],
    "inet": ["'10.0.0.1'", "'10.0.0.1/8'", "'::ffff:1.2.3.4/96'", "'::'"],
    "cidr": ["'10.0.0.0/8'", "'::/0'", "'10.0.0.1'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "bit(3)": ["B'101'", "B'000'"],
    "varbit": ["''", "B'1'", "B'0101010101010'"],
    "money": ["0", "'-92233720368547758.08'", "'92233720368547758.07'", "1234.5"],
    "point": ["'(0.1,-0)'", "'(NaN,Infinity)'"],
    "line": ["'{1,-1,0}'"],
    "lseg": ["'[(0,0),(1,1e300)]'"],
    "box": ["'(3,4),(1,2)'"],
    "path": ["'((0,0),(1,1))'", "'[(0,0),(1,1)]'"],
    "polygon": ["'((0,0),(1,1),(0.1,2))'"],
    "circle": ["'<(0.1,0),2>'"],
    "tsvector": ["''", "'a:1A,3B b ''c d'':2'::tsvector"],
    "tsquery": ["'a & !(b | c:*A)'", "''"],
    "pg_lsn": ["'16/B374D848'", "'0/0'"],
    "oid": ["0", "4294967295"],
    "xid8": ["'18446744073709551615'"],
    "jsonpath": ["'$.a[*] ? (@ > 1)'"],
}
"""By declared type."""

OPTIONAL: dict[str, tuple[str, str, list[str]]] = {
    "xml": ("", "SELECT '<a/>'::xml", ["'<a b=\"1\">ä</a>'", '\'<?xml version="1.0" encoding="latin1"?><a/>\'']),
    "hstore": ("hstore", "", ["''", '\'a=>1, "b c"=>NULL, "q\\""=>""\'']),
    "citext": ("citext", "", ["''", "'MiXed ä'"]),
    "ltree": ("ltree", "", ["'a.b.c'"]),
    "vector(3)": ("vector", "", ["'[1,2.5,-3e-5]'"]),
}
"""By declared type: the extension that has it, a statement that fails where the server was built without it, values."""

UNREPRESENTABLE: dict[str, list[str]] = {
    "date": ["'infinity'", "'-infinity'"],
    "birth": ["'infinity'"],
    "timestamp": ["'infinity'", "'-infinity'", "'294276-12-31 23:59:59.999999'", "'294247-01-10 04:00:54.775808'"],
    "timestamptz": ["'infinity'", "'-infinity'", "'294276-12-31 23:59:59.999999+00'"],
    "time": ["'24:00:00'"],
    "numeric(5,2)": ["'NaN'"],
    "price": ["'NaN'"],
}
"""What no Arrow type holds, by declared type. (A numeric with a precision takes no infinity.)"""
