"""The private members of PyIceberg that the sink uses: a version that changes one shows here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.manifest import ManifestWriterV2
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles, _SnapshotProducer


@pytest.mark.parametrize(
    ("member", "parameters"),
    [
        (_OverwriteFiles.__init__, "operation transaction io commit_uuid snapshot_properties branch"),
        (_OverwriteFiles._commit, ""),
        (_OverwriteFiles._existing_manifests, ""),
        (_OverwriteFiles._deleted_entries, ""),
        (_OverwriteFiles._process_manifests, "manifests"),
        (_OverwriteFiles._build_delete_files_partition_predicate, ""),
        (_OverwriteFiles._current_branch_head_id, ""),
        (_OverwriteFiles._summary, "snapshot_properties"),
        (_OverwriteFiles.new_manifest_output, ""),
        (ManifestWriterV2.__init__, "spec schema output_file snapshot_id avro_compression"),
        (ManifestWriterV2.content, ""),
        (_OverwriteFiles.append_data_file, "data_file"),
        (_OverwriteFiles.delete_data_file, "data_file"),
        (
            _ManifestMergeManager.__init__,
            "target_size_bytes min_count_to_merge merge_enabled snapshot_producer",
        ),
        (_ManifestMergeManager.merge_manifests, "manifests"),
        (Transaction._stage, "updates requirements"),
        (Catalog._delete_old_metadata, "io base metadata"),
        (SqlCatalog._init_catalog, ""),
        (SqlCatalog._load_file_io, "properties location"),
        (SqlCatalog._update_and_stage_table, "current_table table_identifier requirements updates"),
        (PyArrowFile.__init__, "location path fs buffer_size"),
        (PyArrowFile.create, "overwrite"),
    ],
)
def test_it_is_there_with_its_parameters(member: Any, parameters: str) -> None:
    assert [name for name in inspect.signature(member).parameters if name != "self"] == parameters.split()


def test_attributes_are_there() -> None:
    assert issubclass(_OverwriteFiles, _SnapshotProducer)
    source = inspect.getsource(_SnapshotProducer.__init__)
    assert "self._compression = " in source
    assert isinstance(inspect.getattr_static(ManifestWriterV2, "_meta"), property)
    assert "self._target_branch = " in source
    assert "self._parent_snapshot_id = self._current_branch_head_id()" in source
    for attribute in ("self._updates = ", "self._requirements = ", "self._table = "):
        assert attribute in inspect.getsource(Transaction.__init__), attribute
    assert isinstance(inspect.getattr_static(Transaction, "table_metadata", None), property) or (
        "self.table_metadata" in inspect.getsource(Transaction)
    )
    assert "self._written_manifests.append(" in inspect.getsource(_SnapshotProducer.new_manifest_output)
    # The engine is replaced between these two lines.
    assert "self.engine = " in inspect.getsource(SqlCatalog.__init__).partition("self._init_catalog()")[0]
    # The name that the sink gives stands in names of files, and nowhere else.
    lines = [line for line in inspect.getsource(_SnapshotProducer).splitlines() if "commit_uuid" in line]
    assert all(
        any(part in line for part in ("commit_uuid=self.commit_uuid", "self.commit_uuid = ", "commit_uuid: uuid.UUID"))
        for line in lines
    )
