"""A Spark app whose tasks are too large for Spark to keep them in memory: ``large_tasks_app.py FOLDER``.

Its tasks contain the source's settings. They wait for the file ``go`` in the folder. The file ``running`` shows that
they have started.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_cdc.jobs.runtime.driver import settings_from_environment
from airflow_provider_cdc.jobs.runtime.session import open_session
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sources.api.source import ConnectionSettings


@dataclass(frozen=True)
class Wait:
    folder: str
    settings: ConnectionSettings
    ballast: bytes

    def __call__(self, order: tuple[int, ConnectionSettings, bytes]) -> str:
        Path(self.folder, "running").touch()
        while not Path(self.folder, "go").exists():
            time.sleep(0.05)
        assert order[1] == self.settings
        return self.settings.password[::-1]


if __name__ == "__main__":
    settings = settings_from_environment()
    spark = open_session("large tasks")
    orders = [(number, settings, bytes(2**20)) for number in range(3)]
    found = run_tasks(spark, "wait", orders, Wait(sys.argv[1], settings, bytes(3 * 2**20)))
    print(found[0][::-1] == settings.password)
    spark.stop()
