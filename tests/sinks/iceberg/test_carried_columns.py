"""Rows that were read, and are carried over schema changes before they are published: each column stays the Iceberg
column that it was for readers of earlier snapshots, or the table is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.base import Prepared, Publication
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import again_of, iceberg_table, rows_at, run_id_of, run_of
from tests.sinks.iceberg.test_identities import assert_rows, field_ids, rows_of
from tests.sinks.test_contract import ORDERS, Lake

AT_NIGHT = {"a": 1, "b": "of b"}
READ = {**AT_NIGHT, "c": "of c"}
NAMES = {"id": "id", "b": "a", "a": "b", "d": "c", "c": ""}
CARRIED = {"b": 1, "a": "of b", "d": "of c", "c": "new"}


def publish(lake: Lake, number: int, **columns: object) -> None:
    lake.sink.publish(run_of(lake, number, {ORDERS: rows_of(**columns)}, ("id",)))


def place_of_read(lake: Lake, number: int) -> Place:
    return lake.sink.prepare(run_id_of(number), [Prepared(ORDERS, rows_of(**READ).schema, ("id",))])[ORDERS]


def assert_carried(lake: Lake, before: dict[str, int]) -> None:
    ids = field_ids(lake)
    assert (ids["id"], ids["b"], ids["a"]) == (before["id"], before["a"], before["b"])
    assert not {ids["c"], ids["d"]} & {*before.values()}
    assert len({*ids.values()}) == len(CARRIED) + 1


@pytest.mark.slow
def test_swapped_renamed_and_new_columns_of_a_read(lake: Lake) -> None:
    """Also if two runs do so at once. By their names, the Iceberg columns could not take the values."""
    publish(lake, 1, **AT_NIGHT)
    before, reads = field_ids(lake), {number: place_of_read(lake, number) for number in (2, 3)}
    carried = [
        run_of(lake, number, {ORDERS: rows_of(**CARRIED)}, ("id",), read=read, names=NAMES)
        for number, read in reads.items()
    ]
    # What is prepared has no effect: a run may be killed before its manifest names it.
    assert field_ids(lake) == before
    for publication in reversed(carried):
        lake.sink.publish(publication)
        assert_carried(lake, before)
        assert_rows(lake, 1, AT_NIGHT)
    for number in reads:
        assert_rows(lake, number, CARRIED)
    # The copy is the base of the next one.
    lake.sink.publish(run_of(lake, 4, {ORDERS: rows_of(**CARRIED)}, ("id",)))
    assert_carried(lake, before)


@pytest.mark.parametrize("storage", [pytest.param("s3", marks=pytest.mark.long)], indirect=True)
def test_iceberg_columns_of_a_rest_catalog(storage: Storage) -> None:
    lake = Lake("iceberg", storage)
    publish(lake, 1, **AT_NIGHT)
    before, read = field_ids(lake), place_of_read(lake, 2)
    lake.sink.publish(run_of(lake, 2, {ORDERS: rows_of(**CARRIED)}, ("id",), read=read, names=NAMES))
    assert_carried(lake, before)
    assert rows_at(lake, run_id_of(1)) == [{"id": 1, **AT_NIGHT}]
    assert rows_at(lake, run_id_of(2)) == [{"id": 1, **CARRIED}]


def _drop(lake: Lake) -> None:
    plain_catalog(lake.storage).drop_table((ORDERS.schema, ORDERS.name))


def _replace(lake: Lake) -> None:
    """Replace the table by one with the same columns."""
    _drop(lake)
    lake.sink.prepare(run_id_of(5), [Prepared(ORDERS, rows_of(**AT_NIGHT).schema, ("id",))])


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda lake: publish(lake, 3, b=1, a="of b"), "changed the columns of the Iceberg table"),
        (lambda lake: publish(lake, 3, **AT_NIGHT, e=1), "changed the columns of the Iceberg table"),
        (_drop, "was dropped or replaced"),
        (_replace, "was dropped or replaced"),
    ],
)
def test_columns_of_an_iceberg_table_that_changed_meanwhile(
    lake: Lake, happens: Callable[[Lake], None], why: str
) -> None:
    lake.options = {"on_type_change": "new_column"}
    publish(lake, 1, **AT_NIGHT)
    read = place_of_read(lake, 2)
    happens(lake)
    with pytest.raises(ConfigurationError, match=why):
        run_of(lake, 2, {ORDERS: rows_of(**CARRIED)}, ("id",), read=read, names=NAMES)
    if happens is _drop:
        with pytest.raises(NoSuchTableError):
            iceberg_table(lake)


def test_places_of_earlier_versions_and_moved_tables_are_refused(lake: Lake) -> None:
    publish(lake, 1, **AT_NIGHT)
    read = place_of_read(lake, 2)
    details = {name: value for name, value in read.details.items() if name != "schema_then"}
    for other in (replace(read, details=details), replace(read, folder=f"{read.folder}2")):
        with pytest.raises(ConfigurationError, match="while the run was at work"):
            run_of(lake, 2, {ORDERS: rows_of(**CARRIED)}, ("id",), read=other, names=NAMES)


def test_runs_roll_one_copy_forward_over_exchanged_names(lake: Lake) -> None:
    """A run that is prepared after another one was published, or after it was lost before its cut, finds the names
    exchanged already."""
    publish(lake, 1, a=1, b=2)
    before = field_ids(lake)
    (base,) = lake.sink.prepare(run_id_of(1), [Prepared(ORDERS, rows_of(a=1, b=2).schema, ("id",))]).values()

    def rolled(number: int) -> Publication:
        rows = {ORDERS: rows_of(b=1, a=2)}
        names = {"id": "id", "b": "a", "a": "b"}
        publication = run_of(lake, number, rows, ("id",), base=base, names=names)
        return replace(publication, tables=tuple(replace(one, base=run_id_of(1)) for one in publication.tables))

    earlier, later = rolled(2), rolled(3)
    lake.sink.publish(earlier)
    lake.sink.publish(later)
    lake.sink.publish(rolled(4))
    assert field_ids(lake) == {"id": before["id"], "b": before["a"], "a": before["b"]}
    assert_rows(lake, 1, {"a": 1, "b": 2})
    assert_rows(lake, 4, {"b": 1, "a": 2})


@pytest.mark.parametrize("numbers", [{}, {"id": "7/1", "a": "7/2", "b": "7/3"}])
def test_a_run_before_one_that_dropped_a_column_has_the_column_of_its_base(lake: Lake, numbers: dict[str, str]) -> None:
    """The later run may have been lost before its cut, so the earlier one goes on from the copy before both."""
    first = run_of(lake, 1, {ORDERS: rows_of(a=1, b=2)}, ("id",), identities=numbers)
    lake.sink.publish(first)
    lake.sink.publish(run_of(lake, 3, {ORDERS: rows_of(a=1)}, ("id",), identities=numbers))
    base = first.tables[0].place
    second = run_of(lake, 2, {ORDERS: rows_of(a=1, b=3)}, ("id",), identities=numbers, base=base)
    lake.sink.publish(again_of(second, first))
    assert sorted(row["b"] for row in rows_at(lake, run_id_of(2))) == [2, 3]
    assert [*field_ids(lake)] == ["id", "a"]


def test_a_table_that_was_never_published_takes_columns_of_any_type(lake: Lake) -> None:
    """Also without the option. A run may have failed before it published the table."""
    read = place_of_read(lake, 1)
    rows = rows_of(b="text", c="of c")
    lake.sink.publish(run_of(lake, 1, {ORDERS: rows}, ("id",), read=read, names={"id": "id", "b": "a", "c": "c"}))
    assert_rows(lake, 1, {"b": "text", "c": "of c"})
