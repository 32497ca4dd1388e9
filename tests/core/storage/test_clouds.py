"""Folders in Azure and Google Cloud Storage, on their emulators, and whole copies that are published there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings, using
from airflow_provider_cdc.errors import CdcError, StorageRefused
from harness.cloud_servers import ACCOUNT, BUCKET, KEY, azure_server, gcs_server, has_azurite, has_gcs
from tests.core.storage.increments import incremented
from tests.sinks.test_contract import Lake

pytestmark = pytest.mark.long
AZURE = f"abfs://{BUCKET}@{ACCOUNT}.dfs.core.windows.net"


@pytest.fixture(scope="module", params=["azure", "gcs"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageSettings]:
    directory: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "azure":
        if not has_azurite():
            pytest.skip("Azurite needs Node and npm")
        with azure_server(directory) as endpoint:
            yield StorageSettings("azure", {"account": ACCOUNT, "key": KEY, "endpoint": endpoint})
    else:
        if not has_gcs():
            pytest.skip("fake-gcs-server is not packaged for this machine")
        with gcs_server(directory) as endpoint:
            yield StorageSettings("gcs", {"endpoint": endpoint, "anonymous": "true"})


@pytest.fixture
def uri(cloud: StorageSettings, tmp_path: Path) -> str:
    return f"{AZURE if cloud.store == 'azure' else f'gs://{BUCKET}'}/{tmp_path.name}%20%C3%BC"


@pytest.fixture
def folder(cloud: StorageSettings, uri: str) -> Storage:
    return Storage(uri, cloud)


def files_below(folder: Storage) -> list[str]:
    infos = folder.filesystem.get_file_info(fs.FileSelector(folder.path(), recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(f"{folder.path()}/") for info in infos if info.is_file)


def test_records_are_created_once_and_replaced_only_if_unchanged(folder: Storage) -> None:
    assert folder.has_conditional_writes
    name = "shop.odd ü+&name~20/r.json"
    assert [folder.create_json(name, {"by": by}) for by in ("one", "two")] == [True, False]
    present = folder.read_versioned(name)
    assert present is not None
    assert present[0] == folder.read_json(name) == {"by": "one"}
    assert [folder.replace_json(name, {"by": by}, present[1]) for by in ("three", "four")] == [True, False]
    assert folder.read_json(name) == {"by": "three"}
    assert folder.read_versioned("none.json") is None
    assert files_below(folder) == [name]


def test_each_increment_of_many_writers_counts(folder: Storage) -> None:
    assert incremented(folder) == 20


def test_folders_and_files_behave_as_on_a_disk(folder: Storage) -> None:
    folder.check_writable()
    folder.write_json("x/y/z.json", {})
    assert (folder.folders(), folder.sizes("x/y")) == (["x"], {"x/y/z.json": 2})
    assert list(folder.times("x/y")) == ["x/y/z.json"]
    folder.make_folder("x/w")
    folder.adopt("x/y/z.json", "x/w/a.json")
    assert folder.move_to("x/y/z.json", folder, "x/w/b.json") == ""
    assert (folder.files("x/w"), folder.exists("x/y/z.json")) == (["x/w/a.json", "x/w/b.json"], False)
    assert not folder.delete_empty_folder("x/w")
    folder.delete_folder("x/w")
    assert files_below(folder) == []
    assert folder.files("none") == []


def test_copies_are_published_and_rolled_forward(cloud: StorageSettings, uri: str) -> None:
    with using(cloud):
        lake = Lake("parquet", Storage(uri))
        first = lake.stage(3)
        lake.sink.publish(first)
        second = lake.stage(5, 1, before=first)
        copies = lake.sink.publish(second)
        assert lake.seen() == [[3, 3, 5], [3, 3, 5]]
        assert lake.sink.publish(second) == copies
        assert not any(copy.is_latest for copy in lake.sink.publish(lake.stage(4)).values())
        for change in first.tables:
            assert lake.sink.remove(first.run_id, change.table, change.added) == []
        assert lake.seen() == [[3, 3, 5], [3, 3, 5]]


def test_wrong_credentials_are_refused_without_showing_them(cloud: StorageSettings, uri: str) -> None:
    if cloud.store == "gcs":
        pytest.skip("the emulator checks no credentials")
    secret = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    sas = f"sv=2021-12-02&ss=b&srt=sco&sp=rwl&se=2030-01-01T00:00:00Z&sig={secret}"
    place = {"account": ACCOUNT, "endpoint": cloud.get("endpoint")}
    # pyarrow.fs puts a SAS token into the wrong part of an emulator's address: an error of another kind.
    for options, kind in (({"key": secret}, StorageRefused), ({"sas_token": sas}, CdcError)):
        with pytest.raises(kind) as refusal:
            Storage(uri, StorageSettings("azure", place | options)).create_json("x.json", {})
        assert secret not in f"{refusal.value}{refusal.value.__cause__}"
