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
  on_table_error: skip
  keep_slot: false
sources:
  - source_conn_id: cdc_mysql
    kind: mysql
    tables: ["shop.*", "!shop.tmp_*"]
    target: s3://lake/{source}
    chunk_rows: 5000
  - source_conn_id: cdc.pg
    kind: postgres
    tables: [public.orders]
    target: /data/lake
    spark_conf: {spark.executor.cores: "2"}
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
    assert postgres.options["keep_slot"] is False
    assert "as_of" not in postgres.options


def test_everything_that_is_wrong_is_told_at_once_with_line_and_key(tmp_path: Path) -> None:
    wrong = """
schedule: daily
timezone: Mars/Base
colour: red
defaults:
  chunk_rowz: 5
sources:
  - source_conn_id: cdc_mysql
    kind: mysql
    tables: shop.*
    target: lake
    chunk_rows: many
    slot_wait_seconds: 5
    chunk_rowz: 7
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
        ("line 14, key sources[0].chunk_rowz", "there is no such option"),
        ("line 13, key sources[0].slot_wait_seconds", "mysql has no such option"),
        ("line 10, key sources[0].tables", "'shop.*' is not a list of table names"),
        (
            "line 11, key sources[0].target",
            "'lake' cannot be used as a folder: it is neither a URI nor an absolute path",
        ),
        ("line 12, key sources[0].chunk_rows", "'many' is not a whole number above 0"),
        ("line 16, key sources[1].kind", "the source has no valid kind"),
        ("line 20, key sources[2].target", "duplicate key, first in line 19"),
        ("line 18, key sources[2].tables", "'public' does not name a table"),
        (
            "line 19, key sources[2].target",
            "'s3://lake?***' cannot be used as a folder: it has a query",
        ),
        ("line 17, key sources[2]", "the source has no source_conn_id"),
        ("line 6, key defaults.chunk_rowz", "no source has such an option"),
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


@pytest.mark.parametrize(("given", "as_of"), [("standing_slot: nightly", INTERVAL_END), ("chunk_rows: 5", None)])
def test_postgres_goes_back_only_where_the_log_is_kept_for_it(tmp_path: Path, given: str, as_of: str | None) -> None:
    text = f"sources:\n  - kind: postgres\n    source_conn_id: a\n    tables: [b.c]\n    target: /lake\n    {given}\n"
    assert read(tmp_path, text).sources[0].options.get("as_of") == as_of
