"""The comparison of keys finds exactly the keys that several shards have, however the keys are divided."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.parquet import writer
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.shards import collisions
from airflow_provider_cdc.jobs.shards.collisions import CompareKeys, ReadExtents, ShardFile, Shards, portions
from tests.seeds import seeds

SHARDS, ROWS = 3, 400
KEYS: dict[str, tuple[list[pa.DataType], Callable[[random.Random], tuple[Any, ...]]]] = {
    "signed": ([pa.int64()], lambda rng: (rng.randint(-(10**4), 10**4),)),
    "unsigned": ([pa.uint64()], lambda rng: (2**64 - rng.randint(1, 10**4),)),
    "text": ([pa.string()], lambda rng: ("".join(rng.choice("aAé ") for _ in range(rng.randint(0, 8))),)),
    "bytes and a number": ([pa.binary(), pa.int32()], lambda rng: (bytes([rng.randint(0, 255)]), rng.randint(0, 60))),
    # Its extents are not in the footers.
    "decimal": ([pa.decimal128(9, 2)], lambda rng: (Decimal(rng.randint(0, 10**4)) / 100,)),
    # One value of the first column has more rows than a portion.
    "one tenant": ([pa.int32(), pa.int64()], lambda rng: (7, rng.randint(0, 10**4))),
    # Days and microseconds of years that Python cannot hold.
    "date": ([pa.date32()], lambda rng: (3_000_000 + rng.randint(0, 10**4),)),
    "time": ([pa.timestamp("us", "UTC")], lambda rng: (-(10**17) + rng.randint(0, 10**4),)),
    # -0.0 is not 0.0.
    "float": ([pa.float64()], lambda rng: (rng.choice((-1.0, 1.0)) * rng.randint(0, 5000),)),
}


@pytest.mark.parametrize("seed", seeds(0))
@pytest.mark.parametrize("kind", list(KEYS))
def test_random_keys(kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 40)
    monkeypatch.setattr(collisions, "_SHOWN", 10**6)
    types, draw = KEYS[kind]
    names = [f"k{number}" for number in range(len(types))]
    schema = pa.schema([*map(pa.field, names, types), pa.field("v", pa.int8())])
    staging = Staging(Storage(tmp_path.as_uri()))
    files: list[ShardFile] = []
    owners: dict[str, set[int]] = defaultdict(set)
    for shard in range(SHARDS):
        keys = {repr(key): key for key in (draw(rng) for _ in range(ROWS))}
        for text in keys:
            owners[text].add(shard)
        ordered = sorted(keys.values())
        cut = rng.randint(0, len(ordered))
        for part in (ordered[:cut], ordered[cut:]):
            with staging.writer(f"part-{shard}", schema) as out:
                columns = [pa.array([key[place] for key in part], kind) for place, kind in enumerate(types)]
                out.write(pa.table([*columns, pa.nulls(len(part), pa.int8())], schema=schema))
            files += [ShardFile(shard, staging.folder, file) for file in out.files]
    expected = {text for text, shards in owners.items() if len(shards) > 1}
    shards = Shards(tuple(names), schema)
    for portion_rows, with_extents in ((10**6, False), (100, False), (100, True)):
        monkeypatch.setattr(collisions, "PORTION_ROWS", portion_rows)
        divided = portions(files, ReadExtents(shards)(files) if with_extents else [])
        assert len(divided) == 1 if portion_rows > ROWS else len(divided) > 1
        found = [CompareKeys(shards)(portion) for portion in divided]
        assert sum(one.count for one in found) == len(expected)
        by_key = {one.key: set(one.tables) for portion in found for one in portion.first}
        assert sorted(by_key.values(), key=sorted) == sorted((owners[text] for text in expected), key=sorted)
