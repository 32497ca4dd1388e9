"""A run stops if a foreign publication changes its meaning, even without ALTER PUBLICATION.

Without a foreign publication, another try of the run may drop the run's own one.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_cdc.errors import PreflightError, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.api.registry import open_source
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.contract.begun import LOCK, RUN_ID, Begun, row_keys
from tests.contract.databases import PostgresDatabase

PUBLICATION = "Shop's; all, of it"
QUOTED = f'"{PUBLICATION}"'

SETUP = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL)",
    "CREATE TABLE parts (id int PRIMARY KEY, note text NOT NULL) PARTITION BY RANGE (id)",
    "CREATE SCHEMA elsewhere",
    "CREATE TABLE elsewhere.parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("orders", "parts", "elsewhere.parts_low")),
    "INSERT INTO orders SELECT i, 'first' FROM generate_series(0, 9) i",
    "INSERT INTO parts SELECT i, 'first' FROM generate_series(0, 9) i",
)
ROOT = (
    "CREATE TABLE all_orders (id int PRIMARY KEY, note text NOT NULL) PARTITION BY RANGE (id);"
    "ALTER TABLE all_orders REPLICA IDENTITY FULL"
)
ATTACH = "ALTER TABLE all_orders ATTACH PARTITION orders FOR VALUES FROM (0) TO (100)"
UPDATE = "UPDATE orders SET note = 'second'"

IN_SCHEMA, ALL, ALL_AS_ROOT = (
    "FOR TABLES IN SCHEMA public",
    "FOR ALL TABLES",
    "FOR ALL TABLES WITH (publish_via_partition_root)",
)

HAZARDS = {
    "a table leaves the published schema for a while": (
        IN_SCHEMA,
        ("orders",),
        (
            "BEGIN; ALTER TABLE orders SET SCHEMA elsewhere; UPDATE elsewhere.orders SET note = 'second';"
            "ALTER TABLE elsewhere.orders SET SCHEMA public; COMMIT"
        ),
    ),
    "a root leaves the published schema for a while": (
        IN_SCHEMA,
        ("parts",),
        (
            "BEGIN; ALTER TABLE parts SET SCHEMA elsewhere; UPDATE elsewhere.parts SET note = 'second';"
            "ALTER TABLE elsewhere.parts SET SCHEMA public; COMMIT"
        ),
    ),
    "a table becomes a partition, and is logged as its root": (
        ALL_AS_ROOT,
        ("orders",),
        f"{ROOT}; {ATTACH}; {UPDATE}",
    ),
    "a table becomes a partition for a while": (
        ALL_AS_ROOT,
        ("orders",),
        f"{ROOT}; BEGIN; {ATTACH}; {UPDATE}; ALTER TABLE all_orders DETACH PARTITION orders; COMMIT",
    ),
}

BEFORE = {
    "gone": (ALL, f"DROP PUBLICATION {QUOTED}"),
    "without a table": ("FOR TABLE orders, parts", f"ALTER PUBLICATION {QUOTED} DROP TABLE orders"),
    "of inserts alone": (ALL, f"ALTER PUBLICATION {QUOTED} SET (publish = 'insert')"),
    "of some rows": ("FOR TABLE orders, parts", f"ALTER PUBLICATION {QUOTED} SET TABLE orders WHERE (id > 5), parts"),
    "of a table that is not logged": (ALL, "ALTER TABLE orders SET UNLOGGED"),
    "of a partition that is not logged": (
        ALL_AS_ROOT,
        (
            "CREATE UNLOGGED TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (200);"
            "ALTER TABLE parts_high REPLICA IDENTITY FULL"
        ),
    ),
}


def _made(server: PostgresServer, database: str, what: str) -> PostgresDatabase:
    made = PostgresDatabase(server, database)
    made.settings = replace(made.settings, options={"publication": PUBLICATION})
    made.execute(*SETUP, f"CREATE PUBLICATION {QUOTED} {what}")
    return made


def _rewound(run: Begun) -> dict[str, list[bytes]]:
    """The rows of all tables at the initial position, as the run finds them."""
    found = run.read_all()
    window = run.window()
    rows = {}
    for name, table in run.tables.items():
        before = window.before[name]
        keys = row_keys(found[name], table.key)
        own = [
            row
            for row, key in zip(row_keys(found[name], found[name].schema.names), keys, strict=True)
            if key not in before
        ]
        rows[name] = sorted([*own, *(row for row in before.values() if row is not None)])
    return rows


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_publication_that_tells_less_for_a_while_stops_the_run(
    hazard: str, postgres: PostgresServer, database: str
) -> None:
    what, tables, statements = HAZARDS[hazard]
    shop = _made(postgres, database, what)
    with shop.account():
        run = Begun(shop, *tables)
        try:
            shop.execute(*statements.split(";"))
            with pytest.raises(SchemaChanged):
                _rewound(run)
        finally:
            run.release()


@pytest.mark.parametrize("hazard", BEFORE)
def test_a_publication_that_tells_less_since_preflight_stops_the_run(
    hazard: str, postgres: PostgresServer, database: str
) -> None:
    what, statement = BEFORE[hazard]
    shop = _made(postgres, database, what)
    with shop.account():
        source = open_source(shop.settings)
        plans = source.preflight(["public.orders", "public.parts"])
        shop.execute(statement)
        with pytest.raises(PreflightError, match=r"publication Shop's; all, of it|not in the log"):
            source.record_initial(plans, LOCK, RUN_ID)
    assert shop.kept() in ([], [PUBLICATION])


@pytest.mark.parametrize("publication", ["", PUBLICATION])
def test_a_publication_that_is_altered_while_the_slot_waits_stops_the_run(
    publication: str, postgres_factory: PostgresFactory
) -> None:
    """Since PostgreSQL 18, a missing publication is no error, and no server reports what a publication once lacked."""
    server = postgres_factory(version=18)
    shop = _made(server, "postgres", "FOR TABLE orders, parts")
    shop.settings = replace(shop.settings, options={"publication": publication} if publication else {})
    with shop.account(), shop.connect() as writer, ThreadPoolExecutor(1) as pool:
        source = open_source(shop.settings)
        plans = source.preflight(["public.orders", "public.parts"])
        writer.execute("BEGIN; CREATE TABLE holds_up_the_slot ()")
        recording = pool.submit(source.record_initial, plans, LOCK, RUN_ID)
        while not shop.query("SELECT 1 FROM pg_replication_slots"):
            assert not recording.done()
            time.sleep(0.01)
        if publication:
            shop.execute(*(f"ALTER PUBLICATION {QUOTED} {verb} TABLE orders" for verb in ("DROP", "ADD")))
        else:
            ((own,),) = shop.query("SELECT slot_name FROM pg_replication_slots")
            shop.execute(f"DROP PUBLICATION {own}")
        writer.execute("COMMIT")
        with pytest.raises(SourceUnavailable, match="altered or dropped"):
            recording.result()
    assert shop.kept() == [PUBLICATION]
