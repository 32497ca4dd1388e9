"""The provider's description is valid: one wrong key in it breaks every ``airflow`` command."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from airflow_provider_cdc.airflow_version import OLDEST
from airflow_provider_cdc.get_provider_info import get_provider_info
from harness.dag_runner import DagRunner
from tests.seeds import some

ROOT = Path(__file__).parents[1]
_IDENTITY_FIELDS = ("aws_conn_id", "azure_conn_id", "gcp_conn_id", "iam", "region_name", "secret_ref")
_TLS_FIELDS = ("ca", "cert", "key", "mode", "server_key", "trusted_network")


def test_description_follows_the_schema_of_this_airflow() -> None:
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(get_provider_info(), schema)


def test_description_names_the_documentation_that_the_package_names() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        documentation = tomllib.load(file)["project"]["urls"]["Documentation"]
    info = get_provider_info()
    (integration,) = info["integrations"]
    assert integration["external-doc-url"] == f"{documentation}/"
    assert f"{documentation}/options/" in info["config"]["cdc"]["description"]


def test_every_setting_that_is_read_or_documented_is_declared() -> None:
    declared = set(get_provider_info()["config"]["cdc"]["options"])
    sources = [path for folder in ("airflow_provider_cdc", "dags", "docs") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text() for path in sources if path.suffix in (".py", ".md")]
    documented = {name.lower() for text in texts for name in re.findall(r"AIRFLOW__CDC__([A-Z_]+)", text)}
    read = {name for text in texts for name in re.findall(r'(?:get\("cdc", |_listed\()"(\w+)"', text)}
    assert {"nightly", "production_targets", "report_urls", "targets"} <= read
    assert read | documented == declared


def test_description_imports_nothing_of_airflow() -> None:
    code = (
        "import sys, airflow_provider_cdc.get_provider_info as p; p.get_provider_info();"
        "sys.exit(any(name.split('.')[0] in ('airflow', 'pyarrow') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_it_names_exists() -> None:
    info = get_provider_info()
    for section in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[section]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for name in [*info["notifications"], *info["extra-links"]]:
        module, _, name = name.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    for scheme in info["asset-uris"]:
        module, _, name = scheme["to_openlineage_converter"].rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    for connection in info["connection-types"]:
        module, _, name = connection["hook-class-name"].rpartition(".")
        hook = getattr(importlib.import_module(module), name)
        assert hook.conn_type == connection["connection-type"]
        assert hook.hook_name == connection["hook-name"]


@pytest.mark.parametrize("kind", ["sensors", "triggers"])
def test_every_sensor_and_trigger_is_listed(kind: str) -> None:
    (listed,) = get_provider_info()[kind]
    folder = ROOT / "airflow_provider_cdc" / kind
    own = {path.stem for path in folder.glob("*.py")} - {"__init__", "waiting"}
    assert set(listed["python-modules"]) == {f"airflow_provider_cdc.{kind}.{name}" for name in own}


def test_the_pages_and_the_picture_that_it_names_are_there() -> None:
    (integration,) = get_provider_info()["integrations"]
    for path in (*integration["how-to-guide"], integration["logo"]):
        assert path.startswith("/docs/")
        assert (ROOT / path[1:]).is_file(), path


def test_every_step_of_the_group_is_listed() -> None:
    (listed,) = get_provider_info()["operators"]
    group = (ROOT / "airflow_provider_cdc/task_groups/snapshot.py").read_text()
    assert listed["python-modules"]
    assert set(listed["python-modules"]) == set(re.findall(r"^from (\S+) import \w+Operator$", group, re.MULTILINE))


@pytest.mark.slow
def test_airflow_lists_provider_hook_form_fields_and_settings(dag_runner: DagRunner) -> None:
    code = """
import json
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
print(json.dumps({
    "provider": "airflow-provider-cdc" in manager.providers,
    "hook": manager.hooks["cdc_mysql"].connection_id_attribute_name,
    "fields": sorted(name for name in manager.connection_form_widgets if "cdc_mysql" in name),
    "hidden": manager.field_behaviours["cdc_mysql"]["hidden_fields"],
    "settings": [conf.get("cdc", name) for name in ("source_conn_ids", "report_urls")],
    "unset": conf.get("cdc", "nightly", fallback="none"),
}))
"""
    result = subprocess.run(
        [sys.executable, "-W", "error::airflow.exceptions.AirflowProviderDeprecationWarning", "-c", code],
        env={
            **{name: value for name, value in dag_runner.environment.items() if "__CDC__" not in name},
            "AIRFLOW__CDC__REPORT_URLS": "s3://lake=https://files.example.com/{lake}",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "provider": True,
        "hook": "source_conn_id",
        "fields": [
            f"extra__cdc_mysql__{name}" for name in (*_IDENTITY_FIELDS, *(f"tls_{name}" for name in _TLS_FIELDS))
        ],
        "hidden": ["schema", "extra"],
        "settings": ["cdc_*", "s3://lake=https://files.example.com/{lake}"],
        "unset": "none",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    some(
        "hooks",
        "operators.preflight",
        "assets",
        "hooks.mysql",
        "notifications.failure",
        "sensors.position",
        "sensors.runway",
        "task_groups.snapshot",
        "triggers.position",
        "triggers.runway",
        plain=2,
    ),
)
def test_an_airflow_that_is_too_old_is_refused_by_name(module: str, dag_runner: DagRunner) -> None:
    code = f"import airflow; airflow.__version__ = '3.1.4'; import airflow_provider_cdc.{module}"
    result = subprocess.run(
        [sys.executable, "-c", code], env=dag_runner.environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "needs Apache Airflow 3.1.5 or later, but this is 3.1.4" in result.stderr


def test_the_oldest_airflow_is_the_same_everywhere() -> None:
    oldest = ".".join(map(str, OLDEST))
    assert f'"apache-airflow>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    assert f"apache-airflow=={oldest}" in (ROOT / "dev/oldest.txt").read_text().splitlines()
