"""The file of the DAG `nightly`: a mistake is reported with its line and key, before any run, without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.as_of import INTERVAL_END
from airflow_provider_cdc.errors import ConfigurationError, PreflightError
from airflow_provider_cdc.nightly import Nightly, read_nightly

GOOD = """
schedule: "30 0 * * *"
timezone: Europe/Berlin
start_date: 2026-01-01
deadline_minutes: 360
defaults:
  on: {table_error: skip}
  read:
    keep_slot: false
sources:
  - source_conn_id: cdc_mysql
    kind: mysql
    tables: ["shop.*", "!shop.tmp_*"]
    target: s3://lake/{source}
    read: {chunk_rows: 5000}
  - source_conn_id: cdc.pg
    kind: postgres
    tables:
      - public.*
      - {name: public.orders, where: "id = 1"}
    target:
      uri: /data/lake
      format: {iceberg: {catalog_conn_id: lake}}
      retention: {copies: 7, days: 30}
    refresh: {standing_slot_hours: 5}
    spark: {conf: {spark.executor.cores: "2"}}
"""


def read(tmp_path: Path, text: str) -> Nightly:
    file = tmp_path / "nightly.yaml"
    file.write_text(text)
    return read_nightly(file)


def refused(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    with pytest.raises(PreflightError) as error:
        read(tmp_path, text)
    return [
        (problem.where.removeprefix(f"{tmp_path}/nightly.yaml, "), problem.what) for problem in error.value.problems
    ]


def test_what_the_file_says_is_what_runs(tmp_path: Path) -> None:
    nightly = read(tmp_path, GOOD)
    assert (nightly.schedule, nightly.timezone, nightly.deadline_minutes) == ("30 0 * * *", "Europe/Berlin", 360)
    assert nightly.start_date.isoformat() == "2026-01-01T00:00:00"
    mysql, postgres = nightly.sources
    assert (mysql.name, postgres.name) == ("cdc_mysql", "cdc_pg")
    assert mysql.options == {
        "as_of": INTERVAL_END,
        "refresh": "auto",
        "on_table_error": "skip",
        "source_conn_id": "cdc_mysql",
        "tables": ["shop.*", "!shop.tmp_*"],
        "target": "s3://lake/{source}",
        "chunk_rows": 5000,
    }
    assert postgres.options == {
        "refresh": "auto",
        "on_table_error": "skip",
        "keep_slot": False,
        "source_conn_id": "cdc.pg",
        "tables": ["public.*", {"name": "public.orders", "where": "id = 1"}],
        "target": "/data/lake",
        "format": "iceberg",
        "catalog_conn_id": "lake",
        "keep": 7,
        "keep_days": 30,
        "standing_slot_hours": 5,
        "spark_conf": {"spark.executor.cores": "2"},
    }
    assert "as_of" not in postgres.options


def test_everything_that_is_wrong_is_told_at_once_with_line_and_key(tmp_path: Path) -> None:
    wrong = """
schedule: daily
timezone: Mars/Base
colour: red
defaults:
  read: {chunk_rowz: 5}
sources:
  - source_conn_id: cdc_mysql
    kind: mysql
    tables: shop.*
    target: lake
    read: {chunk_rows: many, slot_wait_seconds: 5}
    limits_: {max_reads: 7}
  - source_conn_id: other
    kind: oracle
  - kind: postgres
    tables: [public]
    target: s3://lake?x=y
    target: s3://lake
"""
    assert refused(tmp_path, wrong) == [
        ("line 4, key colour", "there is no such key"),
        ("line 2, key schedule", "'daily' is not a cron expression such as 30 0 * * *"),
        ("line 3, key timezone", "'Mars/Base' is not a time zone such as Europe/Berlin"),
        ("line 6, key defaults.read.chunk_rowz", "there is no such key"),
        ("line 13, key sources[0].limits_", "there is no such key"),
        ("line 12, key sources[0].read.slot_wait_seconds", "mysql has no such option"),
        ("line 10, key sources[0].tables", "'shop.*' is not a list of table names"),
        (
            "line 11, key sources[0].target",
            "'lake' cannot be used as a folder: it is neither a URI nor an absolute path",
        ),
        ("line 12, key sources[0].read.chunk_rows", "'many' is not a whole number above 0"),
        ("line 15, key sources[1].kind", "the source has no valid kind"),
        ("line 19, key sources[2].target", "duplicate key, first in line 18"),
        ("line 17, key sources[2].tables", "'public' does not name a table"),
        (
            "line 18, key sources[2].target",
            "'s3://lake?***' cannot be used as a folder: it has a query",
        ),
        ("line 16, key sources[2]", "the source has no source_conn_id"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("sources: [", "line 1: invalid YAML"),
        ("a: 1\nsources:\n  - tables: [!shop.x]", "line 3: invalid YAML"),
        ("- 1", "the value is not a mapping"),
        ("schedule: 0 0 * * *", "the file has no sources"),
        ("sources: []", "the list has no sources"),
        ("sources: 5", "the value is not a list"),
        ("sources: [5]", "the value is not a mapping"),
    ],
)
def test_a_file_without_sources_is_no_empty_dag(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises((ConfigurationError, PreflightError)) as error:
        read(tmp_path, text)
    assert told in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_nightly(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(("name", "problems"), [("", 1), ("    name: again\n", 0), ("    name: not good\n", 1)])
def test_two_groups_of_tasks_cannot_have_one_name(tmp_path: Path, name: str, problems: int) -> None:
    source = "  - kind: mysql\n    source_conn_id: a\n    tables: [b.c]\n    target: /lake\n"
    text = f"sources:\n{source}{source}{name}"
    if problems:
        assert len(refused(tmp_path, text)) == problems
    else:
        assert [one.name for one in read(tmp_path, text).sources] == ["a", "again"]


@pytest.mark.parametrize("given", ["as_of: ''", "as_of: '2026-01-01T00:00:00Z'", "as_of: '{{ ds }}T00:00:00Z'"])
def test_the_file_may_ask_for_another_time_than_the_end_of_the_interval(tmp_path: Path, given: str) -> None:
    text = f"sources:\n  - kind: mysql\n    source_conn_id: a\n    tables: [b.c]\n    target: /lake\n    {given}\n"
    options: dict[str, Any] = read(tmp_path, text).sources[0].options
    assert options["as_of"] == given.split("'")[1]


@pytest.mark.parametrize(
    ("given", "as_of"), [("refresh: {standing_slot: nightly}", INTERVAL_END), ("read: {chunk_rows: 5}", None)]
)
def test_postgres_goes_back_only_where_the_log_is_kept_for_it(tmp_path: Path, given: str, as_of: str | None) -> None:
    text = f"sources:\n  - kind: postgres\n    source_conn_id: a\n    tables: [b.c]\n    target: /lake\n    {given}\n"
    assert read(tmp_path, text).sources[0].options.get("as_of") == as_of


OLD = """
defaults:
  on_table_error: skip
sources:
  - source_conn_id: cdc_postgres
    kind: postgres
    tables: [public.orders]
    target: /lake
    where: {public.orders: "id = 1"}
    standing_slot: nightly
    keep: 7
    format: iceberg
    catalog_conn_id: lake
"""


def test_a_file_of_version_0_2_is_read_as_before_and_its_keys_are_told_with_what_to_write(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="there is no such key") as told:
        (source,) = read(tmp_path, OLD).sources
    assert source.options == {
        "as_of": INTERVAL_END,
        "refresh": "auto",
        "on_table_error": "skip",
        "source_conn_id": "cdc_postgres",
        "tables": ["public.orders"],
        "target": "/lake",
        "where": {"public.orders": "id = 1"},
        "standing_slot": "nightly",
        "keep": 7,
        "format": "iceberg",
        "catalog_conn_id": "lake",
    }
    texts = [str(one.message) for one in told]
    for line, hint in (
        (3, "on.table_error"),
        (9, "tables[].where"),
        (10, "refresh.standing_slot"),
        (11, "target.retention"),
        (12, "target.format"),
        (13, "target.format.iceberg.catalog_conn_id"),
    ):
        assert [text for text in texts if f"line {line}, " in text and text.endswith(f"write it as {hint}")], hint


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ("limits: {max_read: 4}", "limits.max_read", "did you mean max_reads?"),
        ("limit: {max_reads: 4}", "limit", "did you mean limits?"),
        ("target: {uri: /lake, retention: {copiez: 7}}", "target.retention.copiez", "did you mean copies?"),
        ("target: {uri: /lake, format: {icebreg: {}}}", "target.format.icebreg", "did you mean iceberg?"),
        ("tables: [{name: b.c, where_: x}]", "tables", "did you mean where?"),
        ("limits: 4", "limits", "write it as lines of `key: value`"),
    ],
)
def test_a_misspelt_key_is_told_with_the_right_one(tmp_path: Path, line: str, key: str, hint: str) -> None:
    keys = {"source_conn_id": "a", "kind": "mysql", "tables": "[b.c]", "target": "/lake"}
    keys.pop(line.partition(":")[0], None)
    text = "sources:\n  -\n" + "".join(f"    {name}: {value}\n" for name, value in keys.items()) + f"    {line}\n"
    with pytest.raises(PreflightError) as error:
        read(tmp_path, text)
    (problem,) = error.value.problems
    assert problem.where.endswith(f"key sources[0].{key}")
    assert problem.hint == hint
