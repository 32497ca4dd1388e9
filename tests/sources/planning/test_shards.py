"""Which tables can be shards of one merged table, on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_cdc.core.options.lake import MergeOptions
from airflow_provider_cdc.core.options.run import AS_DECLARED, StepOptions
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.errors import PreflightError, SchemaChanged
from airflow_provider_cdc.jobs.begin.preparation import with_shards as fixed
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.planning.selections import requested, select
from airflow_provider_cdc.sources.planning.shards import with_shards
from airflow_provider_cdc.sources.planning.survey import Survey, survey
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from harness.postgres_server import PostgresServer

FIRST = "id INT PRIMARY KEY, total DECIMAL(10,2) NOT NULL, note VARCHAR(9) DEFAULT 'x'"


def planned(server: MysqlServer | PostgresServer, schema: str, skip: bool = False, **options: Any) -> Survey:
    """The survey of all tables of ``schema``, of which those named ``s*`` are merged."""
    merging = MergeOptions(**{"merge": {"shop.all": [f"{schema}.s*"]}, **options.pop("merging", {})})
    steps = StepOptions(
        merging=merging, on_table_error="skip" if skip else "fail", changes=options.pop("changes", False)
    )
    where, columns = options.get("where"), options.get("columns")
    source = open_source(settings_of(server))
    found = survey(source, [f"{schema}.*"], AS_DECLARED, steps.on_table_error, requested(where, columns))
    found = Survey(select(source, found.plans, list(found.skipped), where, columns), found.skipped)
    return with_shards(source, found, steps, "shop_db")


def refused(server: MysqlServer | PostgresServer, schema: str, **options: Any) -> str:
    with pytest.raises(PreflightError) as raised:
        planned(server, schema, **options)
    return str(raised.value)


def create(server: MysqlServer | PostgresServer, schema: str, **tables: str) -> None:
    for name, columns in tables.items():
        server.query(f"DROP TABLE IF EXISTS {schema}.{name}")
        server.query(f"CREATE TABLE {schema}.{name} ({columns})")


def test_order_defaults_and_nullability_are_reconciled(mysql: MysqlServer, schema: str) -> None:
    create(mysql, schema, s1=FIRST, s2="note VARCHAR(9) NOT NULL, total DECIMAL(10,2), id INT PRIMARY KEY")
    found = planned(mysql, schema, merging={"origin_columns": True})
    assert [str(plan.copy_name) for plan in found.plans] == ["shop.all"] * 2
    one, two = (plan.shard for plan in found.plans)
    assert one is not None
    assert two is not None
    assert one.columns == two.columns
    assert [(column.name, column.nullable) for column in one.columns] == [
        ("id", False),
        ("total", True),
        ("note", True),
    ]
    assert two.origin == {"_source": "shop_db", "_schema": schema, "_table": "s2"}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ("id INT PRIMARY KEY, total DECIMAL(12,2), note VARCHAR(9)", "column total has the type decimal(12,2), not"),
        ("id BIGINT PRIMARY KEY, total DECIMAL(10,2), note VARCHAR(9)", "column id has the type bigint, not int"),
        ("id INT PRIMARY KEY, total DECIMAL(10,2)", "it has no column note"),
        (f"{FIRST}, more INT", "its column more is not in the merged table"),
        ("id INT, total DECIMAL(10,2), note VARCHAR(9), PRIMARY KEY (id, note)", "its key is (id, note), not (id)"),
        (
            "id INT PRIMARY KEY, total DECIMAL(10,2) AS (id * 2) STORED, note VARCHAR(9)",
            "column total has the type decimal(10,2) generated (stored), not decimal(10,2)",
        ),
        ("id INT, total DECIMAL(10,2), note VARCHAR(9)", "without a key"),
    ],
)
def test_other_differences_are_refused_by_name(mysql: MysqlServer, schema: str, other: str, what: str) -> None:
    create(mysql, schema, s1=FIRST, s2=other, plain="id INT PRIMARY KEY")
    error = refused(mysql, schema)
    assert what in error
    assert f"{schema}.s2" in error
    # The other tables of a run that leaves tables out are copied.
    found = planned(mysql, schema, skip=True)
    assert [plan.table.name for plan in found.plans] == ["plain"]
    assert set(found.left_out) == {"shop.all", f"{schema}.s1", f"{schema}.s2"}
    assert what in found.merged["shop.all"]


def test_the_collation_of_the_key_and_labels_count(mysql: MysqlServer, schema: str) -> None:
    binary = "tag VARCHAR(9) COLLATE utf8mb4_0900_bin PRIMARY KEY, e ENUM('a','b')"
    create(mysql, schema, s1=binary, s2="tag VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, e ENUM('b','a')")
    error = refused(mysql, schema)
    assert "its key column tag has the collation utf8mb4_0900_ai_ci, not utf8mb4_0900_bin" in error
    assert "its column e has the type enum('b','a'), not enum('a','b')" in error


@pytest.mark.slow
def test_options_that_do_not_fit(mysql: MysqlServer, schema: str) -> None:
    create(mysql, schema, s1=f"{FIRST}, _source INT", s2=f"_source INT, {FIRST}", plain="id INT PRIMARY KEY")
    assert "the shards have a column _source" in refused(mysql, schema, merging={"origin_columns": True})
    assert "set `Merge.origin_columns` to true" in refused(mysql, schema, merging={"on_collision": "origin_in_key"})
    assert "changes are not published for merged tables" in refused(mysql, schema, changes=True)
    assert "different parts of its shards" in refused(mysql, schema, where={f"{schema}.s1": "id > 5"})
    assert len(planned(mysql, schema, where={f"{schema}.s*": "id > 5"}).plans) == 3
    same_name = {"merge": {f"{schema}.plain": [f"{schema}.s*"]}}
    assert "a table with this name, which is not one of its shards" in refused(mysql, schema, merging=same_name)
    nothing = {"merge": {"shop.all": [f"{schema}.none_*"]}}
    assert "it matches no table of the run" in refused(mysql, schema, merging=nothing)
    twice = {"merge": {"shop.all": [f"{schema}.s*"], "shop.one": [f"{schema}.s1"]}}
    assert "s1 is also matched by" in refused(mysql, schema, merging=twice)
    for name in ("shop.*", "orders", "!shop.all", '"a.b".all'):
        assert f"parameter merge, {name}" in refused(mysql, schema, merging={"merge": {name: [f"{schema}.s*"]}})


def test_a_shard_that_cannot_be_copied_fails_its_merged_table_only(mysql: MysqlServer, schema: str) -> None:
    create(mysql, schema, s1=FIRST, s2=FIRST, plain="id INT PRIMARY KEY")
    mysql.query(f"ALTER TABLE {schema}.s2 ENGINE = MyISAM")
    assert f"{schema}.s2" in refused(mysql, schema)
    found = planned(mysql, schema, skip=True)
    assert [plan.table.name for plan in found.plans] == ["plain"]
    assert f"its shard {schema}.s2 cannot be copied" in found.merged["shop.all"]
    assert "it is a shard of shop.all, which is left out" in found.skipped[f"{schema}.s1"]
    # What was found once is found again.
    assert planned(mysql, schema, skip=True) == found


def test_a_shard_that_was_altered_since_it_was_planned_is_refused(mysql: MysqlServer, schema: str) -> None:
    create(mysql, schema, s1=FIRST, s2=FIRST)
    source = open_source(settings_of(mysql))
    plans = planned(mysql, schema).plans

    def fix() -> InitialPoint:
        return InitialPoint(source.here()[1], Facts({}), tuple(source.tables_of(plans)), 0.0)

    assert [table.shard for table in fixed(source, plans, fix()).tables] == [plan.shard for plan in plans]
    mysql.query(f"ALTER TABLE {schema}.s2 MODIFY total DECIMAL(10,2) NULL FIRST, MODIFY note VARCHAR(9) DEFAULT 'y'")
    assert len(fixed(source, plans, fix()).tables) == 2
    mysql.query(f"ALTER TABLE {schema}.s2 MODIFY total DECIMAL(12,2)")
    with pytest.raises(SchemaChanged, match=r"no longer fits into the merged table shop\.all: its column total"):
        fixed(source, plans, fix())


def test_postgres_types_of_other_schemas_are_refused(postgres: PostgresServer) -> None:
    with_enums = "CREATE SCHEMA {0}; CREATE TYPE {0}.s AS ENUM ('a'); CREATE TABLE {0}.t (id INT PRIMARY KEY, e {0}.s)"
    for name in ("shard_1", "shard_2"):
        for statement in with_enums.format(name).split("; "):
            postgres.query(statement)
        postgres.query(f"ALTER TABLE {name}.t REPLICA IDENTITY FULL")
    try:
        source = open_source(settings_of(postgres))
        found = survey(source, ["shard_*.t"], AS_DECLARED, "fail")
        steps = StepOptions(merging=MergeOptions({"shop.all": ["shard_*.t"]}))
        with pytest.raises(PreflightError, match=r"column e has the type shard_2\.s, not shard_1\.s"):
            with_shards(source, found, steps, "")
    finally:
        postgres.query("DROP SCHEMA shard_1 CASCADE")
        postgres.query("DROP SCHEMA shard_2 CASCADE")
