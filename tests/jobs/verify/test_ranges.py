"""The ranges of a sample cover all keys, and find faults at the rate that the sample states."""

import random
import re

import pyarrow as pa
import pytest

from airflow_provider_cdc.jobs.verify.rows import KeyRange, Sample, chance_to_find, cut, draw


@pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()])
def test_each_key_is_in_exactly_one_range(kind: pa.DataType) -> None:
    chance = random.Random(1)
    bits = kind.bit_width
    least, greatest = (
        (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    for _ in range(20):
        ends = [sorted(chance.randrange(least, greatest + 1) for _ in range(2)) for _ in range(chance.randrange(1, 6))]
        ranges = cut([(low, high, chance.randrange(1, 500)) for low, high in ends], 50)
        keys = [least, greatest, *(chance.randrange(least, greatest + 1) for _ in range(50))]
        keys += [
            bound + by for one in ranges if (bound := one.low) is not None for by in (-1, 0) if bound + by >= least
        ]
        rows = pa.record_batch([pa.array(keys, kind)], ["id"])
        masks = [Sample("id", (one,), len(ranges)).mask(rows).to_pylist() for one in ranges]
        assert [sum(mask) for mask in zip(*masks, strict=True)] == [1] * len(keys)
        for key, row in zip(keys, zip(*masks, strict=True), strict=True):
            assert [Sample("id", (one,), 1).may_have(key, key) for one in ranges] == list(row)


@pytest.mark.slow
def test_a_sample_finds_faults_at_the_rate_that_it_states() -> None:
    ranges = [KeyRange(number * 10, number * 10 + 10) for number in range(200)]
    for faulty in (1, 5, 10, 40):
        places = pa.record_batch([pa.array([number * 50 * 40 // faulty % 2000 for number in range(faulty)])], ["id"])
        samples = [draw("id", ranges, 59, seed, "shop.orders") for seed in range(600)]
        found = sum(sample is not None and any(sample.mask(places).to_pylist()) for sample in samples)
        stated = chance_to_find(59, 200, len({key // 10 for key in places["id"].to_pylist()}))
        # Three standard deviations of 600 draws.
        assert abs(found / 600 - stated) <= 3 * (stated * (1 - stated) / 600) ** 0.5 + 1e-9, faulty


def test_what_a_sample_states_is_what_its_draws_find() -> None:
    sample = draw("id", [KeyRange(number, number + 1) for number in range(1000)], 59, 0, "shop.orders")
    assert sample is not None
    one, share = map(float, re.findall(r"([\d.]+)%", sample.confidence)[:2])
    assert one == 5.9
    assert chance_to_find(59, 1000, round(share * 10)) >= 0.95 > chance_to_find(59, 1000, round(share * 10) - 1)


def test_a_small_table_is_compared_as_a_whole() -> None:
    assert draw("id", cut([(0, 100, 500)], 50), 10, 0, "shop.orders") is None
    assert draw("id", cut([(0, 100, 500)], 50), 0, 0, "shop.orders") is None
