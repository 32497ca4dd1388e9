"""Patterns of tables: what they match, what they leave out, and how long matching takes."""

from __future__ import annotations

import logging
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, Problem
from airflow_provider_cdc.sources.planning.patterns import Pattern, exactly, resolve

KINDS = {
    TableName(schema, name): kind
    for schema, name, kind in [
        ("shop", "orders", "table"),
        ("shop", "Orders", "table"),
        ("shop", "_orders_gho", "table"),
        ("shop", "_orders_del", "table"),
        ("shop", "a.b", "table"),
        ("shop", "star*", "table"),
        ("shop", 'Odd "one" out', "table"),
        ("shop", '"odd"', "table"),
        ("shop", "seen", "view"),
        ("crm", "customers", "table"),
        ("my.schema", "orders", "table"),
        ("!not", "orders", "table"),
    ]
}


def found(*patterns: str, ignore_case: bool = False) -> tuple[list[str], list[Problem]]:
    def unmatched(pattern: str, wanted: TableName, others: list[TableName]) -> Problem:
        return Problem(pattern, f"matches nothing: {wanted.schema}, {wanted.name}, {list(map(str, others))}", "")

    names, problems = resolve(patterns, KINDS, ["table"], unmatched, ignore_case=ignore_case)
    return list(map(str, names)), problems


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["shop.orders"], ["shop.orders"]),
        (["shop.orders", "shop.o*", "shop.orders"], ["shop.orders"]),
        (["*.customers", "crm.*"], ["crm.customers"]),
        (["sh*p.*d*r*s"], ["shop.Orders", "shop.orders"]),
        (["shop.a.b"], ["shop.a.b"]),
        (['"shop"."a.b"'], ["shop.a.b"]),
        (['shop."star*"'], ["shop.star*"]),
        (['shop.Odd "one" out'], ['shop.Odd "one" out']),
        (['shop."Odd ""one"" out"'], ['shop.Odd "one" out']),
        (['shop."""odd"""'], ['shop."odd"']),
        (['"!not".orders'], ["!not.orders"]),
        (["shop.*rders", "!shop.O*"], ["shop.orders"]),
        (["shop.*o*", "!shop._*_gho", "!shop._*_del", "!shop.*dd*"], ["shop.orders"]),
        # Later patterns override earlier ones.
        (["shop.o*", "!shop.*", "crm.*"], ["crm.customers"]),
        (["shop.o*", "!shop.*", "shop.orders"], ["shop.orders"]),
        (["shop.orders", "!crm.*", "!shop.nothing"], ["shop.orders"]),
        (["crm.*", "m*.*", '!"my.schema".*'], ["crm.customers"]),
    ],
)
def test_what_patterns_stand_for(patterns: list[str], expected: list[str]) -> None:
    assert found(*patterns) == (expected, [])


def test_a_pattern_that_leaves_nothing_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert found("crm.*", "!shop.*") == (["crm.customers"], [])
    assert "!shop.* has no effect" in caplog.text


@pytest.mark.parametrize(
    ("patterns", "where", "what"),
    [
        (["!shop.*"], "tables", "none includes any"),
        (["shop.o*", "!*.*"], "tables", "exclude every table"),
        (["shop.*x"], "shop.*x", "matches nothing: shop, *x, []"),
        (["shop.seen"], "shop.seen", "matches nothing: shop, seen, ['shop.seen']"),
        (["shop"], "'shop'", "does not name a table"),
        (["!shop"], "'!shop'", "does not name a table"),
        ([".orders"], "'.orders'", "does not name a table"),
        (['""."x"'], '\'""."x"\'', "matches nothing"),
        (["my.schema.orders"], "my.schema.orders", "the folder of a copy has the name"),
        (['"my.schema".orders'], "my.schema.orders", "the folder of a copy has the name"),
        (["my*.*"], "my.schema.orders", "the folder of a copy has the name"),
    ],
)
def test_what_is_wrong_with_patterns(patterns: list[str], where: str, what: str) -> None:
    names, (problem,) = found(*patterns)
    assert names == []
    if what == "matches nothing":
        where = patterns[0]
    assert (problem.where, what in problem.what) == (where, True)


def test_the_hint_of_a_name_that_makes_no_folder_leaves_it_out() -> None:
    _, (problem,) = found("my*.*")
    pattern = problem.hint.partition("(")[2].partition(")")[0]
    assert found("crm.*", "my*.*", pattern) == (["crm.customers"], [])


def test_names_compare_without_case_where_the_server_does() -> None:
    assert found("SHOP.oRders", ignore_case=True) == (["shop.Orders", "shop.orders"], [])
    assert found("shop.o*", "!SHOP.ORD*", ignore_case=True)[0] == ['shop.Odd "one" out']
    # A letter whose lower case is two letters does not match a name that begins with the first of them.
    assert not Pattern.parse("s.i*").matches(TableName("s", "İ"), str.upper)


PARTS = st.text('ab*."!', min_size=1, max_size=8)


@given(PARTS, PARTS)
def test_exactly_one_name(schema: str, name: str) -> None:
    table = TableName(schema, name)
    pattern = exactly(table)
    assert not pattern.startswith("!")
    assert Pattern.parse(pattern).matches(table)
    assert Pattern.parse(pattern) == Pattern((schema,), (name,))


@given(st.text("ab*", min_size=1, max_size=9), st.text("ab", max_size=12))
def test_stars_match_as_the_definition_says(pattern: str, text: str) -> None:
    @cache
    def matches(at: int, place: int) -> bool:
        if at == len(pattern):
            return place == len(text)
        if pattern[at] == "*":
            return matches(at + 1, place) or (place < len(text) and matches(at, place + 1))
        return place < len(text) and text[place] == pattern[at] and matches(at + 1, place + 1)

    assert Pattern.parse(f"s.{pattern}").matches(TableName("s", text)) == matches(0, 0)


@given(st.text('ab.*"!', max_size=12))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        pattern = Pattern.parse(text)
    except ConfigurationError:
        return
    assert "" not in (pattern.text.schema, pattern.text.name)


@pytest.mark.parametrize("pattern", ["*" * 60 + "x", "a*" * 30 + "x", "*a" * 30 + "*x"])
def test_stars_cost_nothing(pattern: str) -> None:
    names = dict.fromkeys((TableName("s", f"{'a' * 56}{number}") for number in range(1000)), "table")
    began = time.process_time()
    found, _ = resolve([f"*.{pattern}"], names, ["table"], lambda *_: Problem("", "", ""))
    assert found == []
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("shop.order", "shop.orders"),
        ("Shop.orders", "shop.orders"),
        ("shop.Order", "shop.Orders"),
        ("shp.orders", "shop.orders"),
        ("customer", "crm.customers"),
        ("shop.a-b", "shop.a.b"),
        # It cannot be copied.
        ("my-schema.orders", ""),
        ("shpo.*", "shop.*"),
        ("shop.x*", ""),
        ("shop.invoices", ""),
        ("nothing", ""),
        # The name of a view is not misspelt, but a view is never suggested.
        ("shop.seen", ""),
        ("shop.seem", ""),
    ],
)
def test_a_misspelt_pattern_is_answered_with_the_table_that_was_meant(pattern: str, meant: str) -> None:
    names, (problem,) = found(pattern)
    assert names == []
    if meant:
        assert problem.hint.startswith(f"did you mean {meant}? Otherwise")
        assert found(meant)[0]
    else:
        assert "did you mean" not in problem.hint
