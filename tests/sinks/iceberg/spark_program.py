"""Run by the Python of `harness.spark_iceberg`: reads tables by Spark SQL.

Writes, for each query, the rows; and for the first query, the filters by which a column's own value is not found as
often as the rows have it. If a query fails, its rows are empty, and its error stands in place of the filters. The
request is JSON: Spark's ``settings``, and the ``queries``.
"""

from __future__ import annotations

import json
import pickle
import sys
from datetime import date
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def main(request: Path, answer: Path) -> None:
    wanted = json.loads(request.read_text())
    builder = SparkSession.builder.master("local[2]")
    for name, value in wanted["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = []
    for number, query in enumerate(wanted["queries"]):
        try:
            frame = spark.sql(query)
            rows = [tuple(bytes(one) if isinstance(one, bytearray) else one for one in row) for row in frame.collect()]
            answers.append((rows, [] if number else wrong_filters(frame, rows)))
        except Exception as error:
            answers.append(([], [str(error)]))
    answer.write_bytes(pickle.dumps(answers))
    spark.stop()


def wrong_filters(frame: DataFrame, rows: list[tuple[Any, ...]]) -> list[str]:
    """Filters use the bounds in Iceberg's metadata, and skip files."""
    wrong = []
    for at, column in enumerate(frame.columns):
        values = [row[at] for row in rows if row[at] is not None]
        if not values or isinstance(values[0], list):
            continue
        for value in (value for value in {*values} if value == value):
            # PySpark loses the zeros of the year 1.
            literal = f.lit(str(value) if isinstance(value, date) else value).cast(frame.schema[column].dataType)
            found = frame.where(f.col(f"`{column}`") == literal).count()
            if found != values.count(value):
                wrong.append(f"{column} = {value!r}: {found} rows")
    return wrong


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
