"""Copies that keep data files of which rows are deleted by position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_provider_cdc.core.digest.totals import Digest
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.run.table_files import TableFileWriter
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.sinks.base import Publication, TableChange
from tests.sinks.catalogs import plain_catalog
from tests.sinks.test_contract import ORDERS, SCHEMA, Lake


@pytest.fixture(autouse=True)
def only_iceberg(lake: Lake) -> None:
    if lake.format != "iceberg":
        pytest.skip(f"{lake.format} has no position deletes")


UNREAD = Digest(1, 0)
"""In place of the digest of the deleted row, which these tests do not read."""


def without_first_kept_row(publication: Publication) -> Publication:
    """The same run, which deletes the only row of the first file that it keeps."""

    def changed(change: TableChange) -> TableChange:
        place = change.place
        assert place is not None
        staging = Staging(Storage(place.folder))
        files = TableFileWriter(staging, SCHEMA, place.schema(SCHEMA), "", publication.run_id, "id", place.location)
        first, *others = change.kept
        return replace(change, kept=(files.write_deletes(first, np.array([0]), UNREAD), *others))

    return replace(publication, tables=tuple(map(changed, publication.tables)))


def keeps_all(publication: Publication, base: Publication) -> Publication:
    """The same run, which keeps all files of ``base``, with their deletes."""
    changes = []
    for change, before in zip(publication.tables, base.tables, strict=True):
        added = [replace(file, name=file.base_name) for file in before.added]
        changes.append(replace(change, kept=(*before.kept, *added), base=base.run_id))
    return replace(publication, tables=tuple(changes))


@pytest.mark.slow
def test_a_file_all_of_whose_rows_are_deleted_stays_deleted_in_later_copies(lake: Lake) -> None:
    first = lake.stage(1)
    lake.sink.publish(first)
    second = without_first_kept_row(lake.stage(2, before=first))
    lake.sink.publish(second)
    assert lake.seen() == [[1, 2, 2, 2]] * 2
    third = keeps_all(lake.stage(3), second)
    lake.sink.publish(third)
    assert lake.seen() == [[1, 2, 2, 2, 3, 3, 3]] * 2
    # A full copy keeps nothing, and the copy after it puts back the files of the third one.
    lake.sink.publish(lake.stage(4))
    assert lake.seen() == [[4, 4, 4]] * 2
    lake.sink.publish(keeps_all(lake.stage(5, count=1), third))
    assert lake.seen() == [[1, 2, 2, 2, 3, 3, 3, 5]] * 2
    told = lake.sink.latest(ORDERS)
    assert told is not None
    assert (told.rows, told.files) == (8, ())


def test_an_older_run_that_ends_late_has_its_deletes(lake: Lake) -> None:
    first = lake.stage(1)
    lake.sink.publish(first)
    late = without_first_kept_row(lake.stage(2, before=first))
    lake.sink.publish(lake.stage(3))
    lake.sink.publish(late)
    assert lake.seen() == [[3, 3, 3]] * 2
    lake.sink.publish(keeps_all(lake.stage(4, count=1), late))
    assert lake.seen() == [[1, 2, 2, 2, 4]] * 2


def test_a_delete_file_that_is_gone_stops_the_publication(lake: Lake) -> None:
    first = lake.stage(1)
    lake.sink.publish(first)
    second = without_first_kept_row(lake.stage(2, before=first))
    change = second.tables[0]
    assert change.place is not None
    assert change.kept[0].deletes is not None
    Storage(change.place.folder).delete_file(change.kept[0].deletes.name)
    with pytest.raises(FileDamaged, match="is gone"):
        lake.sink.publish(second)
    assert lake.seen() == [[1, 1, 1]] * 2


def test_a_copy_with_deletes_replaces_what_another_program_changed(lake: Lake) -> None:
    first = lake.stage(1)
    lake.sink.publish(first)
    second = without_first_kept_row(lake.stage(2, before=first))
    lake.sink.publish(second)
    third = keeps_all(lake.stage(3), second)
    # This removes data files, and leaves the delete file.
    plain_catalog(lake.storage).load_table(("shop", "orders")).delete("id = 1")
    lake.options = {"on_foreign_commit": "replace"}
    lake.sink.publish(third)
    assert lake.seen() == [[1, 2, 2, 2, 3, 3, 3]] * 2
