"""The PostgreSQL users that `docs/permissions.md` creates can copy, and leave nothing on the server.
tests/dags/test_documents.py tests the MySQL user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.pipeline import Pipeline, published
from harness.postgres_server import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "c0rrect-horse-battery"
PAGE = (Path(__file__).parents[1] / "docs/permissions.md").read_text().partition("## PostgreSQL")[2]
ROLE, OWNERSHIP, PUBLICATION, FULL = (
    re.sub("--.*", "", one).replace("…", PASSWORD) for one in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
)
pytestmark = pytest.mark.long


@pytest.fixture
def app(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server with the database, the schema and the tables of the page, whose owner is another role."""
    postgres.query("CREATE DATABASE app")
    postgres.query(
        "CREATE ROLE shop_owner; CREATE SCHEMA shop AUTHORIZATION shop_owner; SET ROLE shop_owner;"
        "CREATE TABLE shop.orders (id int PRIMARY KEY); CREATE TABLE shop.customers (id int PRIMARY KEY);"
        "INSERT INTO shop.orders VALUES (1), (2); INSERT INTO shop.customers VALUES (5)",
        database="app",
    )
    postgres.query(ROLE, database="app")
    yield postgres
    slots = postgres.drop_database("app")
    postgres.query("DROP ROLE copier; DROP ROLE shop_owner")
    assert not slots, slots


def settings(app: PostgresServer, **options: str) -> ConnectionSettings:
    return ConnectionSettings("postgres", app.host, app.port, "copier", PASSWORD, "app", options=options)


@pytest.mark.parametrize("way", ["as the owner", "by the owner's publication"])
@pytest.mark.parametrize("identity", ["key", "full"])
def test_the_user_of_the_page_copies(
    app: PostgresServer, spark: SparkSession, tmp_path: Path, way: str, identity: str
) -> None:
    if identity == "full":
        app.query(FULL + FULL.replace("shop.orders", "shop.customers"), database="app")
    if way == "as the owner":
        reached = settings(app)
        app.query(OWNERSHIP, database="app")
    else:
        reached = settings(app, publication="copies")
        app.query(PUBLICATION, database="app")
    before = app.query("SELECT pubname FROM pg_publication", database="app")
    run = Pipeline(spark, reached, tmp_path.as_uri(), ["shop.*"])
    run.record()
    found = run.finish()["published"]
    run.release()
    assert sorted(published(found["shop.orders"])[1]) == [(1,), (2,)]
    assert published(found["shop.customers"])[1] == [(5,)]
    assert app.query("SELECT pubname FROM pg_publication", database="app") == before


def test_the_user_alone_is_refused_with_both_ways(app: PostgresServer, spark: SparkSession, tmp_path: Path) -> None:
    run = Pipeline(spark, settings(app), tmp_path.as_uri(), ["shop.*"])
    with pytest.raises(PreflightError) as refused:
        run.record()
    assert "publication" in str(refused.value)
