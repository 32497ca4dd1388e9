"""`bench codecs`: the size of a copy with each codec of `Lake.compression`, and the CPU time of writing and reading it.

This package copies a table of each shape. Its rows are then written again with each codec, in turns, by the writer that
a copy uses, without digests. The CPU seconds are those of one process; the fewest of all rounds count.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.options.lake import CODECS
from airflow_provider_cdc.core.parquet.writer import ParquetWriter
from airflow_provider_cdc.core.storage.folder import Storage
from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import SHAPES, ensure_table
from harness.messages import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=500_000)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated list (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of times that each codec writes the rows")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report, lines = Report("codecs", arguments.rows), []
    with (
        bench_server(directory) as server,
        tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work,
        Contender("ours", Address.of(server), logs_directory(directory) / "ours.log") as ours,
    ):
        ours.ready()
        for shape in arguments.shapes.split(","):
            say(f"bench: copying the shape {shape}")
            target = Path(work) / shape
            ours.run(Order(ensure_table(server, shape, arguments.rows), arguments.rows, str(target)))
            batches = pq.read_table([str(file) for file in target.glob("*/snapshot=*/*.parquet")]).to_batches()
            shutil.rmtree(target)
            measured = _measured(batches, arguments.rounds, Path(work))
            first = measured[CODECS[0]]
            for codec, (size, write, read) in measured.items():
                report.results.append(Result(f"{shape}_{codec}", arguments.rows, write, 0.0))
                ratios = [f"{own / one:.2f}" for own, one in zip(first, (size, write, read), strict=True)]
                report.ratios[f"vs_{codec}_{shape}"] = write / first[1]
                lines.append([f"{shape}, {codec}", f"{size / 1e6:.1f}", f"{write:.2f}", f"{read:.2f}", *ratios])
    print(f"\nbench: {arguments.rows:,} rows of each shape; the ratios are those of {CODECS[0]} to the codec\n")
    print_table(["", "MB", "CPU s, writing", "CPU s, reading", "ratio: MB", "writing", "reading"], lines)
    return report


def _measured(batches: list[pa.RecordBatch], rounds: int, work: Path) -> dict[str, list[float]]:
    """Return the bytes, and the fewest CPU seconds of writing and of reading, by codec."""
    found: dict[str, list[tuple[float, ...]]] = {codec: [] for codec in CODECS}
    for _ in range(rounds):
        for codec, measured in found.items():
            with tempfile.TemporaryDirectory(dir=work) as folder:
                writer = ParquetWriter(Storage(folder), "part", batches[0].schema, compression=codec)
                started = time.process_time()
                for batch in batches:
                    writer.write(batch)
                writer.close()
                written = time.process_time()
                pq.read_table(folder)
                size = sum(file.bytes for file in writer.files)
                measured.append((size, written - started, time.process_time() - written))
    return {codec: [min(values) for values in zip(*measured, strict=True)] for codec, measured in found.items()}
