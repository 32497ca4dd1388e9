"""Every session setting is pinned, required or known to be harmless, and none changes what a run reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import query, read, reading_session, session, value
from airflow_provider_cdc.sources.postgres.server.session_setup import of_run
from airflow_provider_cdc.sources.postgres.server.session_variables import HARMLESS, PINNED, REQUIRED
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from harness.throw_away import throw_away
from tests.consistency.postgres.servers import EVERY
from tests.seeds import some
from tests.sources.postgres.server.hostile_settings import hostile_values, one_of_each, session_settings, set_for_role
from tests.sources.postgres.server.hostile_shop import ROWS, TABLES, Shop, copy_under_random_values, opened

VERSIONS = sorted((one.major for one in installations()), reverse=True)


@pytest.fixture(scope="module", params=EVERY)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with (
        throw_away("cdc-postgres-") as directory,
        PostgresServer.start(directory, version=request.param) as server,
        opened(server) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def _defaults(shop: Shop) -> Iterator[None]:
    yield
    set_for_role(shop.root, "reader", {})


def test_every_setting_of_a_session_is_pinned_required_or_known_to_be_harmless(shop: Shop) -> None:
    found = {name for name, *_ in session_settings(shop.root)}
    assert len(found) > 150, "the server does not tell all of them"
    unknown = sorted(found - PINNED.keys() - REQUIRED.keys() - HARMLESS.keys())
    assert unknown == [], "say in session_variables what other values of these would do"
    assert not PINNED.keys() & HARMLESS.keys()
    assert not REQUIRED.keys() & {**PINNED, **HARMLESS}.keys()


@pytest.mark.slow
@pytest.mark.parametrize("shop", some(*VERSIONS), indirect=True)
def test_no_values_of_all_settings_together_change_what_is_read(shop: Shop) -> None:
    expected = shop.copied()
    assert {name: counts.total() for name, counts in expected.items()} == dict.fromkeys(TABLES, ROWS)
    values = hostile_values(shop.root)
    assert max(map(len, values.values())) == 2, "more turns are needed"
    wanted = {name: pin.value for name, pin in PINNED.items()} | {"transaction_timeout": "0"}
    for turn in range(2):
        set_for_role(shop.root, "reader", one_of_each(values, turn))
        assert shop.copied() == expected
        with session(shop.db.settings) as control, reading_session(shop.db.settings) as reading:
            for name, setting in wanted.items():
                shown = f"current_setting('{name}', true)"
                (batch,) = read(reading, f"SELECT {shown} AS shown")
                known = setting if name in {known for known, *_ in session_settings(shop.root)} else None
                assert value(control, shown) == batch["shown"][0].as_py() == known


@pytest.mark.parametrize(
    ("shop", "name", "hiding"),
    [
        (VERSIONS[0], "zero_damaged_pages", "on"),
        (VERSIONS[0], "ignore_checksum_failure", "on"),
        # The minor versions of November 2026 added it, and the release candidate of 19 does not have it.
        (17, "composite_type_mismatch", "warn"),
    ],
    indirect=["shop"],
)
def test_a_session_of_a_run_that_would_not_see_damage_is_refused(name: str, hiding: str, shop: Shop) -> None:
    """Preflight has let it pass: it was set since."""
    with session(shop.db.settings) as control:
        settings = of_run(shop.db.settings, identity(control))
    set_for_role(shop.root, "reader", {name: hiding})
    for way in (session, reading_session):
        with pytest.raises(ConfigurationError, match=f"{name} is {hiding}") as refused, way(settings):
            pass
        assert f"RESET {name} " in refused.value.hint


@pytest.mark.parametrize("shop", VERSIONS[:1], indirect=True)
def test_an_error_that_is_expected_does_not_end_the_session(shop: Shop) -> None:
    set_for_role(shop.root, "reader", {"exit_on_error": "on"})
    with session(shop.db.settings) as control:
        with pytest.raises(psycopg.errors.DivisionByZero):
            query(control, "SELECT 1 / 0")
        assert value(control, "1") == 1


@pytest.mark.parametrize("shop", VERSIONS[:1], indirect=True)
def test_the_environment_of_this_process_changes_no_session(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers often have variables of libpq: for psql, or for another database."""
    service = tmp_path / "services"
    service.write_text("[other]\nhostaddr=127.0.0.8\ndbname=postgres\noptions=-c search_path=public\n")
    for name, setting in {
        "PGTZ": "Asia/Tokyo",
        "PGDATESTYLE": "German",
        "PGGEQO": "on",
        "PGCLIENTENCODING": "LATIN1",
        "PGOPTIONS": "-c search_path=public",
        "PGHOSTADDR": "127.0.0.9",
        "PGTARGETSESSIONATTRS": "read-only",
        "PGSERVICE": "other",
        "PGSERVICEFILE": str(service),
    }.items():
        monkeypatch.setenv(name, setting)
    with session(shop.db.settings) as control, reading_session(shop.db.settings) as reading:
        for name, pin in PINNED.items():
            (batch,) = read(reading, f"SELECT current_setting('{name}') AS shown")
            assert value(control, f"current_setting('{name}')") == batch["shown"][0].as_py() == pin.value


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_whole_copies_under_values_of_many_settings(seed: int, shop: Shop, spark: SparkSession, tmp_path: Path) -> None:
    copy_under_random_values(seed, shop, spark, tmp_path.as_uri())
