"""The process in which the stand-in of Databricks runs a ``spark_python_task``.

As on a cluster in dedicated access mode, the process has a session before the program begins, Spark reads ``s3://``
URIs, and the program is executed in the process itself. If it stops the session, the run fails.
"""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from pyspark import SparkContext
from pyspark.sql import SparkSession

_, objects, checkout, program, *arguments = sys.argv
sys.path[:] = [folder for folder in sys.path if not folder.startswith(checkout)]
session = SparkSession.builder.appName("Databricks Shell").getOrCreate()
add_file: Any = SparkContext.addFile


def url(uri: str) -> str:
    return f"{objects}/{quote(uri.removeprefix('s3://'))}"


def add(context: SparkContext, path: str, recursive: bool = False) -> None:
    add_file(context, url(path), recursive)


SparkContext.addFile = add
with urlopen(url(program)) as answer:
    code = compile(answer.read(), program, "exec")
sys.argv = [program, *arguments]
exec(code, {"__name__": "__main__", "__file__": program})
if SparkContext._active_spark_context is None:
    sys.exit("the program has stopped the session of the cluster")
