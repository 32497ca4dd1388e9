"""The algebra with which fast paths are compared: a monoid, and a rewind that is independent of the time of reads."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.tables.net_change import (
    Change,
    Towards,
    bring,
    bring_counts,
    compose,
    net,
    net_counts,
    overlay,
    rewind,
    rewind_counts,
    roll_forward,
    towards,
)
from airflow_provider_cdc.errors import CopyMismatch

Rows = dict[int, str]
Event = dict[int, Change[str]]

STATES = st.dictionaries(st.integers(0, 5), st.text("ab", max_size=1), max_size=6)
WINDOWS = st.dictionaries(st.integers(0, 3), st.builds(Change, st.none() | st.text(), st.none() | st.text()))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Rows], list[Event]]:
    """States of a table, and the event between each and the next; an event may move a row to another key."""
    states = [draw(STATES)]
    events = []
    for _ in range(draw(st.integers(0, 8))):
        now = dict(states[-1])
        event: Event = {}
        for key in draw(st.sets(st.integers(0, 5), min_size=1, max_size=2)):
            before, after = now.pop(key, None), draw(st.none() | st.text("ab", max_size=1))
            event[key] = Change(before, after)
            if after is not None:
                now[key] = after
        events.append(event)
        states.append(now)
    return states, events


@given(WINDOWS, WINDOWS, WINDOWS)
def test_windows_form_a_monoid(a: Event, b: Event, c: Event) -> None:
    assert compose(compose(a, b), c) == compose(a, compose(b, c)) == net([a, b, c])
    assert compose({}, a) == compose(a, {}) == a


@given(histories())
def test_rewind_undoes_and_roll_forward_does_any_window(history: tuple[list[Rows], list[Event]]) -> None:
    states, events = history
    change = net(events)
    assert rewind(states[-1], change) == states[0]
    assert roll_forward(states[0], change) == states[-1]


@pytest.mark.slow
@given(histories(), st.data())
def test_it_does_not_matter_when_each_key_was_read(
    history: tuple[list[Rows], list[Event]], data: st.DataObject
) -> None:
    states, events = history
    moments = [data.draw(st.integers(0, len(events))) for _ in range(6)]
    read = {key: states[moment][key] for key, moment in enumerate(moments) if key in states[moment]}
    assert rewind(read, net(events)) == states[0]


@given(histories(), st.data())
def test_replaying_an_overlap_changes_nothing(history: tuple[list[Rows], list[Event]], data: st.DataObject) -> None:
    states, events = history
    start = data.draw(st.integers(0, len(events)))
    replayed = roll_forward(roll_forward(states[0], net(events)), net(events[start:]))
    assert replayed == states[-1]


@given(st.lists(st.text("ab", max_size=2)), st.lists(st.tuples(st.booleans(), st.text("ab", max_size=2))))
def test_a_multiset_is_rewound_by_its_net_counts(rows: list[str], steps: list[tuple[bool, str]]) -> None:
    before = Counter(rows)
    now = Counter(rows)
    changes: list[tuple[str | None, str | None]] = []
    for adds, row in steps:
        if adds:
            now[row] += 1
            changes.append((None, row))
        elif now[row]:
            now[row] -= 1
            changes.append((row, None))
    assert rewind_counts(+now, net_counts(changes)) == +before


@pytest.mark.slow
@given(histories(), st.data())
def test_a_read_that_lasts_across_the_position_is_brought_to_it_by_both_sides(
    history: tuple[list[Rows], list[Event]], data: st.DataObject
) -> None:
    states, events = history
    position = data.draw(st.integers(0, len(events)))
    moments = [data.draw(st.integers(0, len(events))) for _ in range(6)]
    read = {key: states[moment][key] for key, moment in enumerate(moments) if key in states[moment]}
    forward = towards(net(events[:position]), forward=True)
    back = towards(net(events[position:]), forward=False)
    assert bring(read, overlay(forward, back)) == states[position]
    for key in forward.keys() & back.keys():
        with pytest.raises(CopyMismatch, match="contradicts the first change after it"):
            overlay(forward | {key: Towards(now="c", was=forward[key].was)}, back)


@given(histories(), st.booleans())
def test_the_row_that_was_is_that_of_an_exact_base(history: tuple[list[Rows], list[Event]], forward: bool) -> None:
    states, events = history
    base, target = (states[0], states[-1]) if forward else (states[-1], states[0])
    change = towards(net(events), forward=forward)
    assert {key: one.was for key, one in change.items()} == {key: base.get(key) for key in change}
    assert bring(base, change) == target


def test_a_count_below_zero_is_proof_of_a_mistake() -> None:
    with pytest.raises(CopyMismatch, match=r"3 times, but the run read this row only 1 time\n"):
        rewind_counts({"row": 1}, {"row": 3})
    with pytest.raises(CopyMismatch, match=r"2 times, but the run read this row only 0 times\n"):
        bring_counts({}, {"row": -2})
