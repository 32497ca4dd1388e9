"""The range of the keys of a file, for every key that a source can have."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.parquet.file_stats import key_range


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.uint64(), [2**64 - 1, 0], ("0", "18446744073709551615")),
        (pa.date32(), [0, 1], ("1970-01-01", "1970-01-02")),
        (pa.date32(), [0, 2_147_483_493], ()),
        (pa.date32(), [0, -2_440_588], ()),
        (pa.timestamp("us"), [0, 9_223_371_331_199_999_999], ()),
        (pa.timestamp("us", "UTC"), [0, -(2**60)], ()),
        (pa.string(), ["", "\0"], ("", "\0")),
        (pa.string(), ["a", "b" * 201], ()),
        (pa.binary(), [b"", b"\xff"], ("", "ff")),
    ],
)
def test_ranges(kind: pa.DataType, values: list[Any], expected: tuple[str, ...]) -> None:
    column = pa.array(values, kind) if not pa.types.is_temporal(kind) else None
    if column is None:
        column = pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": column}), sink)
    assert key_range(pq.read_metadata(pa.BufferReader(sink.getvalue())), "key") == expected
