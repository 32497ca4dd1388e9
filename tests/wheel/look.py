"""Run by the Python of an installed wheel (``test_both_ends.py``): checks how this Airflow reads the package's DAGs and
its provider description. Prints JSON: ``dags``, ``problems``.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
from airflow.providers_manager import ProvidersManager

OURS = "airflow_provider_cdc"


def main(folder: str) -> None:
    problems = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bag = DagBag(folder)
    manager = ProvidersManager()
    info = manager.providers["airflow-provider-cdc"].data
    hooks = [manager.hooks[kind] for kind in ("cdc_mysql", "cdc_postgres")]
    jsonschema.validate(_plain(info), json.loads((files("airflow") / "provider_info.schema.json").read_text()))
    problems += [f"import error of {file}: {error}" for file, error in bag.import_errors.items()]
    problems += [f"no hook: {hook}" for hook in hooks if hook is None]
    problems += [str(one.message) for one in told if _is_ours(one, folder)]
    problems += [str(one) for found in getattr(bag, "captured_warnings", {}).values() for one in found]
    print(json.dumps({"dags": sorted(bag.dags), "problems": problems}))


def _plain(info: Any) -> Any:
    # Airflow adds what it finds out.
    return {key: value for key, value in info.items() if value is not None}


def _is_ours(one: warnings.WarningMessage, folder: str) -> bool:
    deprecated = one.category.__module__.startswith("airflow")
    return deprecated or OURS in one.filename or Path(folder) in Path(one.filename).parents


if __name__ == "__main__":
    main(sys.argv[1])
