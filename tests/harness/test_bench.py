"""Every benchmark runs and writes its JSON. The tables are tiny, so the figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.bench.contender import Address, Contender, Order
from harness.bench.processes import TreeMemory, resident_mb
from harness.bench.slope import Line
from harness.errors import HarnessError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for all, as for people: the tables that one bench fills are there for the next."""
    return tmp_path_factory.mktemp("bench")


@pytest.mark.long
@pytest.mark.parametrize(
    ("bench", "options", "results", "ratios"),
    [
        (
            "snapshot",
            ["--rounds=1", "--peers=connectorx_parquet,drain"],
            {"ours", "ours_decode", "connectorx_parquet", "drain"},
            {"vs_connectorx_parquet", "vs_drain"},
        ),
        (
            "snapshot",
            ["--rounds=1", "--shape=taxi-mixture"],
            {"mysql_parquet", "mysql_iceberg", "postgres_parquet", "postgres_iceberg"},
            set(),
        ),
        (
            "delta",
            ["--rounds=1", "--shape=oltp"],
            {"ours", "ours_small_file", "ours_two_files", "ours_two_files_from_disk", "mysql_replication"},
            {"vs_mysql_replication", "vs_one_file", "vs_one_file_from_disk"},
        ),
        (
            "as-of",
            ["--keys=2000"],
            {"now", "past", "log_alone", "log_alone_one_file", "find_a_time"},
            {
                "vs_snapshot_and_log",
                "vs_snapshot_and_log_in_parallel",
                "vs_snapshot_and_log_after_preflight",
            },
        ),
        (
            "refresh",
            [],
            {"full", "unchanged", "1000_neighbours", "1000_scattered", "100000_scattered"},
            {f"vs_full_{night}" for night in ("unchanged", "1000_neighbours", "1000_scattered", "100000_scattered")},
        ),
        (
            "consolidate",
            [],
            {"snapshot", "consolidate_0", "consolidate_1000_hot", "consolidate_1000_scattered", "consolidate_all"},
            {"vs_snapshot_0", "vs_snapshot_1000_hot", "vs_snapshot_1000_scattered", "vs_snapshot_all"},
        ),
        (
            "postgres",
            ["--rounds=1", "--changes=2000"],
            {
                *("ours", "ours_decode", "connectorx_parquet", "psql_copy", "delta_bulk", "delta_oltp"),
                *("ours_again", "view_1000_keys", "view_2000_keys"),
            },
            {
                *(f"vs_{peer}" for peer in ("spark_jdbc", "connectorx_parquet", "dlt_connectorx", "psql_copy")),
                "vs_drain_delta_bulk",
                "vs_drain_delta_oltp",
                *("vs_rewinding", "vs_full_log_one_column", "vs_full_log_beside_40_kb"),
            },
        ),
        ("postgres-as-of", ["--keys=2000"], {"now", "past", "log_alone"}, {"vs_snapshot_and_log"}),
        (
            "many-tables",
            ["--rounds=1", "--tables=20"],
            {f"{kind}_{name}" for kind in ("mysql", "postgres") for name in ("ours", "connectorx_each")},
            {"vs_connectorx_each_mysql", "vs_connectorx_each_postgres"},
        ),
        (
            "dag",
            ["--rounds=1"],
            {"three_submits", "dag", "dag_apart", "dag_preflight", "dag_consolidate"},
            {"vs_three_submits", "vs_three_applications"},
        ),
        (
            "tpcc",
            ["--changes=20"],
            {"mysqldump", "full copy", "night 1", "night 2", "a night without writers"},
            {f"vs_mysqldump_{name}" for name in ("full_copy", "night_1", "night_2", "a_night_without_writers")},
        ),
        ("memory", [], {"worker_200_rows", "worker_2000_rows"}, {"vs_tenth"}),
        (
            "resume",
            ["--kills=1", "--parts=8"],
            {"mysql_whole_run", "postgres_whole_run"},
            {"mysql_kept", "postgres_kept"},
        ),
        (
            "spool",
            ["--images=40000", "--kind=mysql"],
            {"mysql_off", "mysql_auto"},
            {"mysql_vs_off"},
        ),
        (
            "source-impact",
            ["--alone-seconds=0.5"],
            {"writers_alone", "writers_ours", "writers_ours_lock", "writers_mysqldump", "writers_mysqldump_locked"},
            {"vs_mysqldump", "vs_mysqldump_locked", "vs_alone_governed"},
        ),
        (
            "postgres-source-impact",
            ["--alone-seconds=0.5"],
            {"writers_alone", "writers_ours", "writers_ours_governed", "writers_pg_dump"},
            {"vs_pg_dump", "vs_alone_governed"},
        ),
    ],
)
def test_a_bench_writes_what_it_found(
    bench: str, options: list[str], results: set[str], ratios: set[str], data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "harness.bench", bench, "--rows=2000", f"--json={file}", f"--data={data}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing is left running" in done.stdout
    found: dict[str, Any] = json.loads(file.read_text())
    assert set(found) == {"bench", "rows", "results", "ratios"}
    assert (found["bench"], found["rows"]) == (bench, 2000)
    for result in found["results"]:
        assert set(result) == {"name", "rows_per_s", "seconds", "peak_rss_mb"}
        # A lock that lasts from beginning to end may leave the writers no commit at all.
        assert result["rows_per_s"] > 0 or result["name"] == "writers_mysqldump_locked"
        assert result["seconds"] > 0
    assert results <= {result["name"] for result in found["results"]}
    assert set(found["ratios"]) == ratios
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert not list(data.glob("work-*")), "a bench left files behind"


@pytest.mark.slow
def test_an_unknown_peer_is_refused_before_any_server_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.bench", "snapshot", "--peers=drain,abacus", f"--data={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "no such peer: abacus" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_contender_that_fails_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Contender("pymysql_unbuffered", Address("mysql", "127.0.0.1", 1, "root"), log) as contender:
        contender.ready()
        with pytest.raises(HarnessError, match=r"pymysql_unbuffered failed: OperationalError.*log"):
            contender.run(Order("bench.none", 1, str(tmp_path / "target")))
    assert "Traceback" in log.read_text()


def test_the_memory_of_children_counts() -> None:
    program = "import sys; held = b'x' * 80_000_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        with TreeMemory(child.pid) as alone:
            pass
        assert 80 < resident_mb(child.pid) < 200
        assert alone.peak == pytest.approx(resident_mb(child.pid), rel=0.1)
        with TreeMemory(os.getpid()) as both:
            pass
        assert both.peak > alone.peak + 20
        child.stdin.close()


def test_a_slope_is_the_rate_without_the_fixed_cost() -> None:
    line = Line(small_rows=500_000, small_seconds=1.5, rows=2_000_000, seconds=3.0)
    assert line.rows_per_s == pytest.approx(1_000_000)
    assert line.fixed_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [0.9, 1.0, 1.01])
def test_no_slope_is_made_up_out_of_noise(seconds: float) -> None:
    line = Line(small_rows=500, small_seconds=1.0, rows=2000, seconds=seconds)
    assert line.rows_per_s is None
    assert line.fixed_seconds is None
