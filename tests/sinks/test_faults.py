"""Publishing to S3 while the store and the catalog are slow, refuse or lose answers: whole copies, or an error."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage import conditional
from airflow_provider_cdc.core.storage import conditional as obstore_objects
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import TransientError
from harness.http_faults import HANGS, LATE, LOST, REFUSED, Faults, http_faults
from harness.s3_server import make_catalog, s3_environment
from tests.seeds import SOAK_SEED, some
from tests.sinks.catalogs import CATALOG, WAREHOUSE
from tests.sinks.test_contract import Lake

MOST_REQUESTS = {"parquet": 26, "iceberg": 100}
"""The requests of one publication of two tables with two new files each. More would cost money, and time far away."""
ALL = 10_000
"""Faults in a row, which no client's own retries get over."""


@pytest.fixture(params=some("parquet", "iceberg"))
def format_of_lake(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxies(
    s3: str, format_of_lake: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[list[Faults]]:
    monkeypatch.setattr(conditional, "_PAUSE_SECONDS", 0.02)
    if HANGS in request.node.name:
        monkeypatch.setattr("airflow_provider_cdc.sinks.iceberg.catalog.ANSWER_SECONDS", 5.0)
        monkeypatch.setitem(obstore_objects._CLIENT, "timeout", timedelta(seconds=5))
    with ExitStack() as stack:
        proxies = [stack.enter_context(http_faults(s3))]
        for name, value in s3_environment(proxies[0].endpoint).items():
            monkeypatch.setenv(name, value)
        if format_of_lake == "iceberg":
            bucket = f"tables-{uuid.uuid4().hex[:12]}"
            proxies.append(stack.enter_context(http_faults(make_catalog(s3, bucket))))
            monkeypatch.setenv(CATALOG, proxies[1].endpoint)
            monkeypatch.setenv(WAREHOUSE, f"s3://{bucket}")
        yield proxies


def published(lake: Lake, proxies: list[Faults], number: int, at: int, fault: str, burst: int) -> str:
    """Publish the run ``number`` without faults, and the next one with faults from the request ``at`` on. Return the
    name of the error; empty: there was none."""
    first, second = (lake.stage(one, 2, f"20260101T{one:06}Z-00000000") for one in (number, number + 1))
    lake.sink.publish(first)
    sink = lake.sink
    for proxy in proxies:
        begin = len(proxy.requests) + at
        proxy.inject(fault, begin, begin + burst)
    error = ""
    try:
        sink.publish(second)
    except TransientError as failure:
        error = type(failure).__name__
    for proxy in proxies:
        proxy.clear()
    old, new = [number] * 2, [number + 1] * 2
    seen = lake.seen()
    assert all(rows in (old, new) for rows in seen), seen
    assert error or seen == [new, new]
    lake.sink.publish(second)
    assert lake.seen() == [new, new]
    return error


@pytest.mark.slow
def test_a_publication_makes_no_more_requests_than_it_needs(
    proxies: list[Faults], format_of_lake: str, tmp_path: Path
) -> None:
    lake = Lake(format_of_lake, Storage(f"s3://lake/{tmp_path.name}"))
    lake.sink.publish(lake.stage(3, 2))
    publication = lake.stage(5, 2)
    for proxy in proxies:
        proxy.clear()
    lake.sink.publish(publication)
    requests = [f"{request.method} {request.path}" for proxy in proxies for request in proxy.requests]
    assert len(requests) <= MOST_REQUESTS[format_of_lake], "\n".join(requests)
    assert lake.seen() == [[5, 5], [5, 5]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("fault", "burst", "step"),
    some(
        (LOST, 1, 31),
        (LOST, 1, 1),
        (LOST, 1, 7),
        (REFUSED, ALL, 5),
        (LOST, ALL, 5),
        (LATE, 1, 2),
        (REFUSED, 1, 3),
        (HANGS, 1, 9),
    ),
)
def test_a_publication_through_faults_is_whole_or_an_error(
    proxies: list[Faults], format_of_lake: str, tmp_path: Path, fault: str, burst: int, step: int
) -> None:
    lake = Lake(format_of_lake, Storage(f"s3://lake/{tmp_path.name}"))
    beginning = SOAK_SEED % step if SOAK_SEED is not None else 0
    places = range(beginning, MOST_REQUESTS[format_of_lake], step if format_of_lake == "parquet" else 4 * step)
    errors = [published(lake, proxies, 2 * n + 1, at, fault, burst) for n, at in enumerate(places)]
    if burst == ALL:
        assert any(errors), "no fault got through to the publication"


@pytest.mark.slow
def test_latency_makes_a_publication_slow_and_nothing_else(
    proxies: list[Faults], format_of_lake: str, tmp_path: Path
) -> None:
    lake = Lake(format_of_lake, Storage(f"s3://lake/{tmp_path.name}"))
    for proxy in proxies:
        proxy.pause = 0.03
    lake.sink.publish(lake.stage(5, 2))
    assert lake.seen() == [[5, 5], [5, 5]]
