"""The log of a step: warnings appear as warnings, and noise is filtered out. tests/dags cover the real Spark."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_provider_cdc.jobs.runtime.driver import log_line
from airflow_provider_cdc.operators.spark.launchers.client.launcher import LOG4J, log4j_option

PRINTED = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/22 04:52:10 WARN TaskSetManager: Lost task 0.0
04:52:10 ERROR Executor: boom
snapshot: 3 tables, 5 chunks in 2 parts
WARNING: shop.stray is SKIPPED and will not be published: MyISAM
consolidate: WARNING: shop.orders is published, but a newer copy stays the latest one
snapshot failed: LogGone: the log was purged
  Hint: keep it
"""


def test_lines_have_the_level_that_they_say(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        for line in PRINTED.splitlines(keepends=True):
            log_line(line, logging.getLogger("told"))
    assert [(record.levelname, record.getMessage()[:12]) for record in caplog.records] == [
        ("WARNING", "26/11/22 04:"),
        ("ERROR", "04:52:10 ERR"),
        ("INFO", "snapshot: 3 "),
        ("WARNING", "WARNING: sho"),
        ("WARNING", "consolidate:"),
        ("ERROR", "snapshot fai"),
        ("INFO", "  Hint: keep"),
    ]


def test_whoever_has_said_how_spark_logs_is_obeyed(tmp_path: Path) -> None:
    assert LOG4J.is_file()
    assert log4j_option({}, {}) == f'"-Dlog4j2.configurationFile={LOG4J.as_uri()}"'
    assert log4j_option({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=x"}, {}) == ""
    assert log4j_option({}, {"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "log4j2.properties").write_text("")
    assert log4j_option({}, {"SPARK_CONF_DIR": str(tmp_path)}) == ""
