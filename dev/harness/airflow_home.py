"""A private Airflow: its own home folder, the DAGs of this repository, and connections in the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.environment import spark_environment
from harness.errors import HarnessError

ROOT = Path(__file__).resolve().parents[2]


class AirflowHome:
    """Runs ``airflow`` commands with ``AIRFLOW_HOME`` = ``home``. ``prepare`` creates the database, which is SQLite.

    :param connections: JSON fields of each connection by its id; ``spark_default`` (``local[2]``) is added.
    """

    def __init__(self, home: Path, connections: Mapping[str, Mapping[str, object]]) -> None:
        self.home = home
        spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        self.environment = {
            **os.environ,
            **spark_environment(),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CDC__PRODUCTION_TARGETS": "*",
            "AIRFLOW__CDC__SOURCE_CONN_IDS": "*",
            "AIRFLOW__CDC__TARGETS": "*",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
            "TZ": "UTC",
            **{
                f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection)
                for name, connection in {"spark_default": spark, **connections}.items()
            },
        }

    def prepare(self) -> None:
        """Create the database, or migrate it to the current version."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.run("db", "migrate")

    def add_connections(self, connections: Mapping[str, Mapping[str, object]]) -> None:
        """Store connections in the database, and replace those with the same ids.

        :param connections: JSON fields of each connection by its id.
        """
        file = self.home / "connections.json"
        file.write_text(json.dumps(connections))
        file.chmod(0o600)
        self.run("connections", "import", "--overwrite", str(file))
        file.unlink()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments]

    def run(self, *arguments: str, log: Path | None = None) -> str:
        """Run one command, and return its output (or write the output to ``log``).

        :raises HarnessError: the command failed; the message has the end of its output.
        """
        result = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if log:
            log.write_text(result.stdout)
        if result.returncode != 0:
            tail = "\n".join(result.stdout.splitlines()[-30:])
            raise HarnessError(f"airflow {' '.join(arguments[:3])} failed:\n{tail}")
        return result.stdout
