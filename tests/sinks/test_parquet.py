"""Properties of the plain Parquet sink: one folder per copy, with the copy's files and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import FileDamaged
from tests.sinks.test_contract import ORDERS, Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("parquet", Storage(tmp_path.as_uri()))


def test_files_are_moved_into_the_folder_of_the_copy(lake: Lake) -> None:
    publication = lake.stage(5)
    uri = lake.sink.publish(publication)[ORDERS].uri
    assert uri == f"{lake.storage.uri}/shop.orders/snapshot={publication.run_id}"
    assert sorted(Storage(uri).files()) == sorted(file.base_name for file in publication.tables[0].added)
    assert publication.staging.folder.files("chunks/shop.orders") == []


def test_no_file_that_is_in_a_place_is_ever_touched(lake: Lake) -> None:
    """Files in the folder that are not of this copy come from another program, which may be reading them."""
    publication = lake.stage(5)
    theirs = Path(lake.storage.path(f"shop.orders/snapshot={publication.run_id}/part-theirs.parquet"))
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    (theirs.parent / "_SUCCESS").write_text("")
    with pytest.raises(FileDamaged, match=r"not belong to it: shop\.orders/snapshot=.*/part-theirs\.parquet"):
        lake.sink.publish(publication)
    assert theirs.read_text() == "theirs"
    theirs.unlink()
    assert lake.sink.publish(publication)


def test_kept_files_share_their_content_with_the_copy_before(lake: Lake) -> None:
    first = lake.stage(5)
    lake.sink.publish(first)
    second = lake.stage(7, before=first)
    uri = lake.sink.publish(second)[ORDERS].uri
    kept = [Storage(uri).path(file.base_name) for file in second.tables[0].kept]
    older = lake.sink.copy_folder(first.run_id, ORDERS)
    assert [Path(older.path(Path(name).name)).samefile(name) for name in kept] == [True, True]


def test_a_disk_without_links_gets_whole_copies(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **how: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    first = lake.stage(5)
    lake.sink.publish(first)
    monkeypatch.setattr(os, "link", refuse)
    lake.sink.publish(lake.stage(7, before=first))
    assert lake.seen()[0] == [5, 5, 7, 7, 7]
