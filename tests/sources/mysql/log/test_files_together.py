"""Which log files are read together, and that reading them together does not change the result."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_cdc.sources.mysql.log import segments
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import Connection, LogReading, run


def test_a_window_over_several_files(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 0), (2, 0)", "FLUSH BINARY LOGS")
    reading = LogReading(mysql, schema, "a")
    for number in range(1, 4):
        run(db, f"UPDATE a SET v = {number} WHERE id = 1", "FLUSH BINARY LOGS")
    run(db, "UPDATE a SET v = 9")
    files = reading.segments()
    assert [segment.number for segment in files] == [0, 1, 2, 3]
    assert [segment.start for segment in files] == [4] * 4
    assert [segment.stop is None for segment in files] == [True, True, True, False]
    (together,) = reading.segments(slots=2)
    assert (together.name, *together.also) == tuple(segment.name for segment in files)
    assert (together.start, together.stop) == (4, files[-1].stop)
    window = reading.read()
    assert window.before["a"] == {key(1): (1, 0), key(2): (2, 0)}
    assert [summary.transactions for summary in window.summaries] == [1, 1, 1, 1]
    assert all(summary.bytes > 0 and summary.seconds > 0 for summary in window.summaries)


@given(
    sizes=st.lists(st.integers(120, 1 << 30), min_size=1, max_size=30),
    slots=st.integers(1, 64),
    small=st.sampled_from([1 << 8, 1 << 20, 1 << 30]),
)
@example(sizes=[127 << 20, 507 << 20, 507 << 20], slots=2, small=1 << 30)
def test_files_that_are_read_together_are_neighbours_and_no_more_than_a_file_may_be(
    sizes: list[int], slots: int, small: int
) -> None:
    files = {f"log.{number}": 120 + size % small for number, size in enumerate(sizes)}
    groups = segments.together(files, slots)
    assert [name for names in groups for name in names] == list(files)
    held = [sum(files[name] for name in names) for names in groups]
    least, total = segments.LEAST_BYTES, sum(files.values())
    several = [size for size, names in zip(held, groups, strict=True) if len(names) > 1]
    assert max(several, default=0) < 2 * min(segments.TOGETHER_BYTES, max(least, total / slots))
    # No two that lie side by side are small for one.
    aim = min(segments.TOGETHER_BYTES, max(least, total // slots))
    assert all(size + files[after[0]] >= aim for size, after in zip(held, groups[1:], strict=False))
    assert segments.together(files, 0) == [[name] for name in files]


def test_a_segment_of_the_log_is_what_one_task_reads_in_the_time_of_the_others() -> None:
    files = {"log.1": 127 << 20, "log.2": 507 << 20, "log.3": 507 << 20}
    assert segments.together(files, 2) == [["log.1", "log.2"], ["log.3"]]
    assert segments.together(files, 16) == [["log.1"], ["log.2"], ["log.3"]]
    assert segments.together({f"log.{n}": 100 << 20 for n in range(100)}, 2)[:2] == [
        [f"log.{n}" for n in range(5)],
        [f"log.{n}" for n in range(5, 10)],
    ]


def opened_often(connection: Connection, names: str, statement: str) -> None:
    """Change tables in turn, which get other numbers each time."""
    for name in names * 15:
        run(connection, f"FLUSH NO_WRITE_TO_BINLOG TABLES {name}", statement.format(name))


@pytest.mark.long
def test_numbers_that_mean_other_tables_after_a_restart_are_not_taken_for_those_before(mysql_factory: Any) -> None:
    server = mysql_factory({})
    server.query("CREATE DATABASE s")
    with server.connect(database="s") as connection:
        for name in "ab":
            run(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name} VALUES (1, 0)")
    server.restart()
    reading = LogReading(server, "s", "a", "b")
    with server.connect(database="s") as connection:
        opened_often(connection, "ab", "UPDATE {} SET v = v + 1")
    server.restart()
    with server.connect(database="s") as connection:
        opened_often(connection, "ba", "UPDATE {} SET v = v - 2")
    *_, before, after = (_numbers(server, segment.name) for segment in reading.segments())
    others = [number for number, name in after.items() if before.get(number, name) != name]
    assert others, f"no number changed its meaning, so this tries nothing: {before}, then {after}"
    window = reading.read(forward=True)
    assert window.before == {name: {key(1): (1, 0)} for name in "ab"}
    assert window.after == {name: {key(1): (1, -15)} for name in "ab"}


def _numbers(server: MysqlServer, file: str) -> dict[str, str]:
    """Tables' numbers in a file, and their names."""
    infos = (str(info) for *_, info in server.query(f"SHOW BINLOG EVENTS IN '{file}'"))
    return {match[1]: match[2] for info in infos if (match := re.fullmatch(r"table_id: (\d+) \((.*)\)", info))}
