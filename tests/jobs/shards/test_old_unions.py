"""Which copies of earlier unions stay (option ``keep``), on files without rows."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_cdc.core.copies.head import Copy, encode_copy
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.union import UNIONS, Union, UnionCopy, record_commit
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.shards.unite import remove_old_unions


def test_a_part_of_a_copy_does_not_take_the_place_of_a_copy(tmp_path: Path) -> None:
    target = Storage(tmp_path.as_uri())
    unions = []
    for number, present in ((1, "ab"), (2, "ab"), (3, "a"), (4, "ab")):
        union_id = f"2026010{number}T000000Z-ffffffff"
        files = tuple(StagedFile(f"part-{number}{name}.parquet", 1, 1, "") for name in "ab")
        copy = UnionCopy({"eu:shop.orders_1": files}, (), {})
        union = Union(union_id, (), {"shop.orders": copy}, f"2026-01-0{number}T00:00:00+00:00", "")
        unions.append(record_commit(target.folder(UNIONS, union_id), union))
        # The driver of the third one ended while it published.
        for name in present:
            path = tmp_path / "shop.orders" / f"snapshot={union_id}" / f"part-{number}{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1")
    target.write_json("shop.orders/_latest.json", encode_copy(Copy(unions[-1].id)))
    remove_old_unions(target, unions[-1], 2)
    left = sorted(path.name.partition("=")[2] for path in (tmp_path / "shop.orders").iterdir() if path.is_dir())
    assert left == [unions[1].id, unions[3].id]
