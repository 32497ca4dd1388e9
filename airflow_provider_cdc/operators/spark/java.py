"""Checks the Java runtime that ``spark-submit`` would use."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from airflow_provider_cdc.errors import Problem

OLDEST = 17
"""The oldest Java on which Spark 4 starts."""
_ANSWER_SECONDS = 60.0
_INSTALL = f"install Java {OLDEST} or later where Airflow's tasks run, and let JAVA_HOME name its folder"


def java_problems(search_path: str) -> Iterator[Problem]:
    """Yield a problem if there is no Java, or if its version is too old.

    Spark's scripts use the Java in JAVA_HOME. Only if this variable is not set, they use the Java in ``search_path``.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        where, java = "environment variable JAVA_HOME", str(Path(home) / "bin" / "java")
        if not os.access(java, os.X_OK) or not Path(java).is_file():
            hint = f"correct JAVA_HOME, or unset it to use the Java in PATH. Otherwise {_INSTALL}"
            yield Problem(where, f"there is no program {java} on this worker", hint)
            return
    else:
        where, found = "Java", which("java", path=search_path)
        if found is None:
            yield Problem(where, "there is no Java on this worker, and JAVA_HOME is not set", _INSTALL)
            return
        java = found
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=_ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        # A busy machine proves nothing.
        return
    except OSError as error:
        yield Problem(where, f"{java} cannot be started on this worker: {error}", _INSTALL)
        return
    text = (answer.stderr + answer.stdout).decode(errors="replace").strip()
    if answer.returncode:
        last = text.splitlines()[-1] if text else f"status {answer.returncode}"
        yield Problem(where, f"{java} does not start on this worker: {last}", "correct it; `java -version` must work")
        return
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version and int(version[1]) < OLDEST:
        yield Problem(where, f"{java} is Java {version[1]}, but Spark 4 needs Java {OLDEST} or later", _INSTALL)
