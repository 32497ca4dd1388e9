"""Preflight reports everything that would go wrong, all at once, each with a hint that works."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.errors import (
    ConfigurationError,
    LockNotGranted,
    PreflightError,
    Problem,
    SchemaChanged,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.planning.selections import requested
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.server import server as blockers
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.log.reading import settings as settings_of

FULL = "ALTER TABLE {0} REPLICA IDENTITY FULL"


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> PostgresSource:
    return PostgresSource(settings_of(postgres, database))


def run(server: PostgresServer, source: PostgresSource, *statements: str) -> None:
    for statement in statements:
        server.query(statement, database=source.settings.database)


def make(server: PostgresServer, source: PostgresSource, name: str, columns: str = "id int PRIMARY KEY") -> None:
    run(server, source, f"CREATE TABLE {name} ({columns})", FULL.format(name))


def problems_of(source: PostgresSource, *patterns: str, **arguments: Any) -> list[Problem]:
    with pytest.raises(PreflightError) as refused:
        source.preflight(patterns or ["public.*"], TableOptions(**arguments))
    return list(refused.value.problems)


def options(source: PostgresSource, **given: str) -> PostgresSource:
    return PostgresSource(dataclasses.replace(source.settings, options=given))


def test_each_table_gets_the_consistency_that_fits_it(postgres: PostgresServer, source: PostgresSource) -> None:
    make(postgres, source, "keyed")
    make(postgres, source, "keyless", "id int")
    plans = source.preflight(["public.*"], TableOptions(unrepresentable="null"))
    assert [(plan.table.name, plan.consistency, plan.unrepresentable) for plan in plans] == [
        ("keyed", "watermark", "null"),
        ("keyless", "exported", "null"),
    ]
    assert {plan.consistency for plan in source.preflight(["public.*"], TableOptions("exported"))} == {"exported"}
    assert [plan.consistency for plan in source.preflight(["public.keyed"], TableOptions("watermark"))] == ["watermark"]
    (problem,) = problems_of(source, consistency="watermark")
    assert "`watermark` needs a primary key" in problem.what


def test_hints_for_the_replica_identity_fix_it(postgres: PostgresServer, source: PostgresSource) -> None:
    run(
        postgres,
        source,
        "CREATE TABLE plain (id int PRIMARY KEY)",
        'CREATE TABLE "Tree" (id int PRIMARY KEY) PARTITION BY RANGE (id)',
        'CREATE TABLE leaf PARTITION OF "Tree" FOR VALUES FROM (0) TO (10)',
        'CREATE TABLE full_leaf PARTITION OF "Tree" FOR VALUES FROM (10) TO (20)',
        FULL.format("full_leaf"),
    )
    found = problems_of(source, consistency="watermark")
    assert [problem.where for problem in found] == ["public.Tree", "public.plain"]
    assert "full_leaf" not in found[0].hint
    run(postgres, source, *[problem.hint for problem in found])
    source.preflight(["public.*"], TableOptions("watermark"))


def test_tables_whose_rows_the_log_lacks_are_refused(postgres: PostgresServer, source: PostgresSource) -> None:
    run(postgres, source, "CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)", FULL.format("quick"))
    make(postgres, source, "computed", "id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED")
    new = int(postgres.query("SHOW server_version_num")[0][0]) >= 180_000
    if new:
        make(postgres, source, "imagined", "id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL")
    found = {problem.where: problem.what for problem in problems_of(source, consistency="watermark")}
    assert set(found) == {"public.quick", "public.imagined.twice" if new else "public.computed.twice"}
    assert "unlogged" in found["public.quick"]


def test_a_partition_that_is_elsewhere_is_refused(postgres: PostgresServer, source: PostgresSource) -> None:
    if not postgres.query("SELECT 1 FROM pg_available_extensions WHERE name = 'postgres_fdw'"):
        pytest.skip("this server has no postgres_fdw")
    run(
        postgres,
        source,
        "CREATE EXTENSION postgres_fdw",
        "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw",
        "CREATE TABLE tree (id int) PARTITION BY RANGE (id)",
        FULL.format("tree"),
        "CREATE FOREIGN TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (10) SERVER far",
    )
    assert "foreign table" in " ".join(problem.what for problem in problems_of(source))


def test_types_that_print_as_names_of_objects_are_refused(postgres: PostgresServer, source: PostgresSource) -> None:
    make(postgres, source, "named", "id int PRIMARY KEY, what regclass")
    assert [problem.where for problem in problems_of(source)] == ["public.named.what"]


def test_columns_leave_out_what_cannot_be_copied(postgres: PostgresServer, source: PostgresSource) -> None:
    make(postgres, source, "named", "id int PRIMARY KEY, what regclass, n int")
    parts = requested(None, {"public.named": ["n"]})
    assert [plan.consistency for plan in source.preflight(["public.named"], parts=parts)] == ["watermark"]
    # Columns of a condition are read.
    looked_at = requested({"public.named": "what IS NULL"}, {"public.named": ["n"]})
    with pytest.raises(PreflightError, match="present name of an object"):
        source.preflight(["public.named"], parts=looked_at)


def test_the_grant_of_columns_that_is_named_suffices(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    run(postgres, source, "ALTER ROLE reader REPLICATION", "GRANT USAGE ON SCHEMA shop TO reader")
    run(postgres, source, "GRANT SELECT (id) ON shop.leaf TO reader", "CREATE PUBLICATION given FOR TABLE shop.leaf")
    given = options(reader, publication="given")
    parts = requested(None, {"shop.tree": ["id"]})
    with pytest.raises(PreflightError) as refused:
        given.preflight(["shop.*"], parts=parts)
    (problem,) = refused.value.problems
    assert problem.hint == 'GRANT SELECT (ctid) ON "shop"."leaf" TO "reader"'
    (whole,) = problems_of(given, "shop.*")
    assert "leave out the columns that it may not read (name)" in whole.hint
    run(postgres, source, problem.hint)
    assert len(given.preflight(["shop.*"], parts=parts)) == 1


@pytest.fixture
def reader(postgres: PostgresServer, source: PostgresSource) -> Iterator[PostgresSource]:
    """A source whose user has no privileges yet; another role owns the table."""
    run(postgres, source, "CREATE ROLE owner_of_shop", "CREATE ROLE reader LOGIN PASSWORD 'p'", "CREATE SCHEMA shop")
    make(postgres, source, "shop.tree", "id int PRIMARY KEY, name text")
    run(postgres, source, "DROP TABLE shop.tree")
    run(postgres, source, "CREATE TABLE shop.tree (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    run(postgres, source, "CREATE TABLE shop.leaf PARTITION OF shop.tree FOR VALUES FROM (0) TO (9)")
    run(postgres, source, FULL.format("shop.tree"), FULL.format("shop.leaf"))
    run(postgres, source, "ALTER TABLE shop.tree OWNER TO owner_of_shop")
    run(postgres, source, "ALTER TABLE shop.leaf OWNER TO owner_of_shop")
    yield PostgresSource(dataclasses.replace(source.settings, user="reader", password="p"))
    run(postgres, source, "DROP OWNED BY reader, owner_of_shop", "DROP ROLE reader, owner_of_shop")


def test_a_member_that_does_not_inherit_is_told_of_the_role_that_it_has(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    ((version,),) = postgres.query("SHOW server_version_num")
    granted = int(version) >= 160_000
    run(postgres, source, "ALTER ROLE reader REPLICATION", "GRANT ALL ON SCHEMA shop TO owner_of_shop")
    with_option = " WITH INHERIT FALSE" if granted else ""
    run(postgres, source, "ALTER ROLE reader NOINHERIT", f"GRANT owner_of_shop TO reader{with_option}")
    run(postgres, source, f"GRANT CREATE ON DATABASE {source.settings.database} TO reader")
    found = problems_of(reader, "shop.*")
    assert len(found) == 3
    inherit = 'GRANT "owner_of_shop" TO "reader" WITH INHERIT TRUE' if granted else 'ALTER ROLE "reader" INHERIT'
    for problem in found:
        assert inherit in problem.hint
        assert 'ALTER ROLE "reader" SET role = "owner_of_shop"' in problem.hint
    run(postgres, source, inherit)
    assert len(reader.preflight(["shop.*"])) == 1


def test_the_grants_that_are_named_suffice(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    found = problems_of(reader, "shop.*")
    # Grants on a partition's root do not count for the partition.
    assert [problem.where for problem in found] == [
        "REPLICATION",
        f'database "{source.settings.database}"',
        "shop.tree",
        "shop.tree",
        "shop.tree",
    ]
    assert '"shop"."leaf"' in found[3].hint
    run(postgres, source, found[0].hint, found[1].hint.split(",")[0], found[2].hint, found[3].hint)
    run(postgres, source, "GRANT owner_of_shop TO reader")
    assert len(reader.preflight(["shop.*"])) == 1


@pytest.mark.parametrize("name", ["zero_damaged_pages", "ignore_checksum_failure"])
def test_a_setting_that_hides_lost_rows_is_refused(postgres: PostgresServer, reader: PostgresSource, name: str) -> None:
    """A superuser sets it for the user of the copies, who cannot set it back."""
    postgres.query(f"ALTER ROLE reader SET {name} = on")
    (problem,) = (one for one in problems_of(reader, "shop.*") if one.where == name)
    assert "damaged page" in problem.what


def test_a_login_whose_sessions_act_as_a_role_without_replication_is_told(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    """Its replication connections work all the same, so it would show only after hours of reading."""
    run(postgres, source, "ALTER ROLE reader REPLICATION", "GRANT owner_of_shop TO reader")
    run(postgres, source, "ALTER ROLE reader SET role = 'owner_of_shop'")
    (problem,) = (one for one in problems_of(reader, "shop.*") if one.where == "REPLICATION")
    assert 'act as the role "owner_of_shop"' in problem.what
    assert problem.hint == 'ALTER ROLE "reader" RESET role, or ALTER ROLE "owner_of_shop" REPLICATION'
    run(postgres, source, "ALTER ROLE owner_of_shop REPLICATION")
    assert "REPLICATION" not in {one.where for one in problems_of(reader, "shop.*")}


def test_a_user_who_may_not_mark_the_end_of_the_reads_is_told(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    run(postgres, source, "ALTER ROLE reader REPLICATION", "GRANT owner_of_shop TO reader")
    of = "pg_logical_emit_message(bool, text, text" + (", bool)" if postgres.binaries.major >= 17 else ")")
    run(postgres, source, f"REVOKE EXECUTE ON FUNCTION {of} FROM PUBLIC")
    try:
        (problem,) = (one for one in problems_of(reader, "shop.*") if "mark the end" in one.what)
        run(postgres, source, problem.hint)
        assert not any("mark the end" in one.what for one in problems_of(reader, "shop.*"))
    finally:
        run(postgres, source, f"GRANT EXECUTE ON FUNCTION {of} TO PUBLIC")


def test_select_on_every_column_is_not_enough_for_ranges_of_blocks(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    run(postgres, source, "GRANT USAGE ON SCHEMA shop TO reader", "GRANT SELECT (id, name) ON shop.leaf TO reader")
    (problem,) = (problem for problem in problems_of(reader, "shop.*") if "lacks SELECT" in problem.what)
    assert problem.hint.startswith('GRANT SELECT ON "shop"."leaf" TO')
    run(postgres, source, "GRANT SELECT (ctid) ON shop.leaf TO reader")
    assert not any("lacks SELECT" in problem.what for problem in problems_of(reader, "shop.*"))


@pytest.mark.slow
def test_a_publication_that_exists_needs_no_owner_but_all_rows_columns_and_changes(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource, caplog: pytest.LogCaptureFixture
) -> None:
    run(postgres, source, "ALTER ROLE reader REPLICATION", "GRANT USAGE ON SCHEMA shop TO reader")
    run(postgres, source, "GRANT SELECT ON ALL TABLES IN SCHEMA shop TO reader")
    mine = options(reader, publication="lake")
    (problem,) = problems_of(mine, "shop.*")
    run(postgres, source, problem.hint)
    assert len(mine.preflight(["shop.*"])) == 1
    for change, why in {
        "ALTER PUBLICATION lake SET (publish = 'insert, update')": "delete, truncate",
        "ALTER PUBLICATION lake SET TABLE shop.leaf (id)": "some columns of shop.tree",
        "ALTER PUBLICATION lake SET TABLE shop.leaf WHERE (id > 5)": "some rows of shop.tree",
        "ALTER PUBLICATION lake DROP TABLE shop.leaf": "does not list shop.tree",
    }.items():
        run(postgres, source, "DROP PUBLICATION lake", problem.hint, change)
        said = " ".join(found.what for found in problems_of(mine, "shop.*"))
        assert why in said, change
    run(postgres, source, "DROP PUBLICATION lake")
    for rest in ("FOR ALL TABLES", "FOR TABLE shop.tree", "FOR TABLES IN SCHEMA shop", "FOR TABLE shop.leaf"):
        for via_root in ("true", "false"):
            made = f"CREATE PUBLICATION lake {rest} WITH (publish_via_partition_root = {via_root})"
            run(postgres, source, made)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert len(mine.preflight(["shop.*"])) == 1
            assert ("includes every future partition of shop.tree" in caplog.text) == (rest != "FOR TABLE shop.leaf")
            run(postgres, source, "DROP PUBLICATION lake")


def test_rows_that_a_policy_hides_are_never_silently_missing(
    postgres: PostgresServer, source: PostgresSource, reader: PostgresSource
) -> None:
    run(postgres, source, "GRANT SELECT ON ALL TABLES IN SCHEMA shop TO reader")
    run(postgres, source, "ALTER TABLE shop.leaf ENABLE ROW LEVEL SECURITY")
    assert "row-level security hides rows" in " ".join(problem.what for problem in problems_of(reader, "shop.*"))


def test_a_server_that_logs_no_rows_and_a_database_of_another_encoding_are_refused(
    postgres_factory: PostgresFactory,
) -> None:
    # Since PostgreSQL 19, the level replica is enough.
    server = postgres_factory({"wal_level": "replica"}, min(one.major for one in installations()))
    server.query("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    found = problems_of(PostgresSource(settings_of(server, "latin")), "public.no")
    assert [problem.where for problem in found] == ["public.no", "wal_level", "database latin"]


@pytest.fixture
def on_demand(postgres_factory: PostgresFactory) -> PostgresServer:
    """A server that decodes its log only while it has a logical slot."""
    if (newest := max(one.major for one in installations())) < 19:
        pytest.skip("no PostgreSQL here decodes its log on demand")
    return postgres_factory({"wal_level": "replica"}, newest)


def test_the_first_slot_switches_decoding_on_and_preflight_says_what_follows_the_last(
    on_demand: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    source = PostgresSource(settings_of(on_demand, "postgres"))
    make(on_demand, source, "stock")
    level = "SELECT current_setting('effective_wal_level')"
    assert on_demand.query(level) == [("replica",)]
    with caplog.at_level(logging.INFO):
        plans = source.preflight(["public.*"])
    assert "effective_wal_level is replica" in caplog.text
    assert "set wal_level = logical" in caplog.text
    # Its rows are not in the log, so the slot must begin after it.
    with on_demand.connect(autocommit=False) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO stock VALUES (1)")
        recording = pool.submit(source.record_initial, plans, LockPolicy(), "on_demand")
        soon(lambda: on_demand.query("SELECT slot_type FROM pg_replication_slots"), [("logical",)])
        assert not recording.done()
        writer.execute("INSERT INTO stock VALUES (2)")
        writer.commit()
        point = recording.result()
    assert on_demand.query(level) == [("logical",)]
    on_demand.query("INSERT INTO stock VALUES (3)")
    facts = PostgresFacts.of(point.identity)
    kinds = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
    kinds += "'publication_names', %s) WHERE get_byte(data, 0) = ascii('I')"
    assert on_demand.query(kinds, (facts.slot, facts.publication.name)) == [(1,)]
    source.discard(point.identity)
    soon(lambda: on_demand.query(level), [("replica",)])


def test_a_server_that_cannot_switch_decoding_on_is_refused(on_demand: PostgresServer) -> None:
    on_demand.restart({"wal_level": "minimal", "max_wal_senders": "0"})
    source = PostgresSource(settings_of(on_demand, "postgres"))
    make(on_demand, source, "stock")
    assert "wal_level" in {problem.where for problem in problems_of(source)}


def test_a_publication_that_can_except_a_table_for_a_while_is_refused(on_demand: PostgresServer) -> None:
    """The changes of that time are not in the log of the publication, and nothing shows it afterwards."""
    source = options(PostgresSource(settings_of(on_demand, "postgres")), publication="most")
    make(on_demand, source, "stock")
    on_demand.query("CREATE PUBLICATION most FOR ALL TABLES")
    state = "SELECT p, p.xmin, (SELECT array_agg(r) FROM pg_publication_rel r) FROM pg_publication p"
    before = on_demand.query(state)
    on_demand.query("SELECT pg_create_logical_replication_slot('own', 'pgoutput')")
    on_demand.query("ALTER PUBLICATION most SET ALL TABLES EXCEPT (TABLE stock)")
    on_demand.query("INSERT INTO stock VALUES (1)")
    on_demand.query("ALTER PUBLICATION most SET ALL TABLES")
    on_demand.query("INSERT INTO stock VALUES (2)")
    assert on_demand.query(state) == before
    inserts = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('own', NULL, NULL, 'proto_version', '1', "
    inserts += "'publication_names', 'most') WHERE get_byte(data, 0) = ascii('I')"
    assert on_demand.query(inserts) == [(1,)], "the server keeps the changes: such publications could be used"
    (problem,) = problems_of(source)
    assert "is a publication FOR ALL TABLES" in problem.what
    assert 'FOR TABLE "public"."stock"' in problem.hint


@pytest.mark.parametrize("idle", ["0", "2h"])
def test_the_runway_ends_when_the_server_gives_an_idle_slot_up(idle: str, postgres_factory: PostgresFactory) -> None:
    if (newest := max(one.major for one in installations())) < 18:
        pytest.skip("no PostgreSQL here gives idle slots up")
    for size in ("-1", "100TB"):
        server = postgres_factory({"idle_replication_slot_timeout": idle, "max_slot_wal_keep_size": size}, newest)
        runway = PostgresSource(settings_of(server, "postgres")).runway()
        if idle != "0":
            assert (runway.seconds, runway.unbounded) == (7200, False)
            assert "idle_replication_slot_timeout is 7,200 s" in runway.why
            assert "Set it to 0" in runway.why
        else:
            assert "max_slot_wal_keep_size" in runway.why


def test_limits_at_which_the_server_gives_up_a_slot_are_reported(
    postgres_factory: PostgresFactory, caplog: pytest.LogCaptureFixture
) -> None:
    newest = max(binaries.major for binaries in installations())
    limits = {"max_slot_wal_keep_size": "1MB"} | ({"idle_replication_slot_timeout": "1min"} if newest >= 18 else {})
    server = postgres_factory(limits, newest)
    source = PostgresSource(settings_of(server, "postgres"))
    make(server, source, "large", "id int PRIMARY KEY, filling text")
    server.query("INSERT INTO large SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 20000) i")
    with caplog.at_level(logging.WARNING):
        source.preflight(["public.*"])
    assert all(name in caplog.text for name in limits)


def test_connections_that_name_no_database_or_user_say_so(postgres: PostgresServer) -> None:
    for settings in (
        ConnectionSettings("postgres", postgres.host, postgres.port, "postgres"),
        ConnectionSettings("postgres", postgres.host, postgres.port, "", database="postgres"),
    ):
        with pytest.raises(ConfigurationError, match="names no"):
            PostgresSource(settings).preflight(["public.*"])


def test_a_table_whose_rows_lie_in_tables_that_inherit_from_it_is_refused(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    make(postgres, source, "parent")
    run(postgres, source, "CREATE TABLE child (more int) INHERITS (parent)", "ALTER TABLE child ADD PRIMARY KEY (id)")
    run(postgres, source, FULL.format("child"), "INSERT INTO child VALUES (1, 2)")
    assert postgres.query("SELECT count(*) FROM parent", database=source.settings.database) == [(1,)]
    (problem,) = problems_of(source)
    assert problem.where == "public.parent"
    assert "other tables inherit from it (public.child)" in problem.what
    # The child alone is a table like any other.
    (plan,) = source.preflight(["public.child"])
    run(postgres, source, "ALTER TABLE child NO INHERIT parent")
    plans = source.preflight(["public.*"])
    run(postgres, source, "ALTER TABLE child INHERIT parent")
    with pytest.raises(SchemaChanged, match="other tables inherit"):
        source.record_initial(plans, LockPolicy(), "inheriting")
    release = source.record_initial([plan], LockPolicy(), "inheriting")
    source.discard(release.identity)


SPREAD = {
    "TimescaleDB hypertable": (
        "CREATE SCHEMA _timescaledb_catalog; CREATE TABLE _timescaledb_catalog.hypertable AS "
        "SELECT 'public'::name AS schema_name, 'spread'::name AS table_name"
    ),
    "distributed by Citus": (
        "SET allow_system_table_mods = on; CREATE TABLE pg_catalog.pg_dist_partition AS "
        "SELECT 'public.spread'::regclass AS logicalrelid"
    ),
}
"""Stand-ins for the catalogs of these extensions, which are not available here."""


@pytest.mark.parametrize(("what", "catalog"), SPREAD.items())
def test_tables_that_extensions_spread_are_refused_by_what_they_are(
    postgres: PostgresServer, source: PostgresSource, what: str, catalog: str
) -> None:
    make(postgres, source, "spread")
    make(postgres, source, "whole")
    plans = source.preflight(["public.*"])
    with postgres.connect(database=source.settings.database) as connection:
        for statement in catalog.split("; "):
            connection.execute(statement.encode())
    (problem,) = problems_of(source)
    assert problem.where == "public.spread"
    assert what in problem.what
    with pytest.raises(SchemaChanged, match=what):
        source.record_initial(plans, LockPolicy(), "spread")


def test_a_table_without_columns_is_refused(postgres: PostgresServer, source: PostgresSource) -> None:
    make(postgres, source, "bare", "")
    (problem,) = problems_of(source)
    assert problem.where == "public.bare"
    assert "has no columns" in problem.what


def test_how_a_table_is_stored_counts_and_not_its_name(postgres: PostgresServer, source: PostgresSource) -> None:
    run(postgres, source, "CREATE ACCESS METHOD alike TYPE TABLE HANDLER heap_tableam_handler")
    run(postgres, source, "CREATE TABLE stored (id int PRIMARY KEY) USING alike", FULL.format("stored"))
    assert len(source.preflight(["public.*"])) == 1


@pytest.mark.slow
def test_more_partitions_than_a_publication_could_be_dropped_with_are_refused(
    postgres_factory: PostgresFactory,
) -> None:
    few = {"max_locks_per_transaction": "10", "max_connections": "20", "max_prepared_transactions": "0"}
    server = postgres_factory(few)
    source = PostgresSource(settings_of(server, "postgres"))
    # On one connection: processes of ended sessions would pile up.
    with server.connect() as connection:
        for count, name in ((100, "fits"), (101, "large")):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY LIST (id)")
            connection.execute(FULL.format(name))
            for number in range(count):
                connection.execute(f"CREATE TABLE {name}_{number} PARTITION OF {name} FOR VALUES IN ({number})")
                connection.execute(FULL.format(f"{name}_{number}"))
    (problem,) = problems_of(source, "public.large")
    assert problem.where == "max_locks_per_transaction"
    assert "max_locks_per_transaction = 11," in problem.hint
    point = source.record_initial(source.preflight(["public.fits"]), LockPolicy(), "fits")
    source.discard(point.identity)
    assert server.query("SELECT pubname FROM pg_publication") == []


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_a_prepared_transaction_that_locks_a_table_is_named(
    restarted: bool, postgres_factory: PostgresFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockers, "SECONDS", 1)
    server = postgres_factory()
    server.query("CREATE TABLE stock (id int PRIMARY KEY)")
    server.query(FULL.format("stock"))
    with server.connect() as migration:
        migration.execute("BEGIN; ALTER TABLE stock ADD COLUMN note text; PREPARE TRANSACTION 'migration'")
    if restarted:
        server.restart()
    with pytest.raises(LockNotGranted) as refused:
        PostgresSource(settings_of(server, "postgres")).preflight(["public.*"], TableOptions())
    what = "prepared transaction 'migration' of postgres holds the lock ACCESS EXCLUSIVE on public.stock for "
    assert what in str(refused.value)
    server.query("ROLLBACK PREPARED 'migration'")
