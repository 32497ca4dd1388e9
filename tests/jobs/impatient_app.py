"""For a test: executes a step like the apps in ``spark_apps``, but waits for executors only for some seconds."""

import sys
from importlib import import_module

from airflow_provider_cdc.jobs.runtime import tasks
from airflow_provider_cdc.jobs.runtime.app import main

tasks.LOST_SECONDS = 15.0
step = sys.argv.pop(1)
main(step, getattr(import_module(f"airflow_provider_cdc.jobs.{step}.step"), step))
