"""The provider's description for Airflow: a dict, made without importing Airflow or a database driver."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.sources.api.registry import KINDS, Kind

_GUIDES = tuple(f"/docs/{page}.md" for page in ("concepts", "dag-authors", "nightly", "deploying", "runbook"))


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the format of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-cdc",
        "name": "CDC",
        "description": "Copies of MySQL and PostgreSQL tables in a lake, all of them exact at one committed point.",
        "integrations": [
            {"integration-name": "CDC", "logo": "/docs/logo.svg", "tags": ["service"], "how-to-guide": list(_GUIDES)}
        ],
        "hooks": [
            {"integration-name": "CDC", "python-modules": [kind.hook.rpartition(".")[0] for kind in KINDS]},
        ],
        "operators": [
            {
                "integration-name": "CDC",
                "python-modules": [
                    "airflow_provider_cdc.operators.preflight",
                    "airflow_provider_cdc.operators.lock_and_record",
                    "airflow_provider_cdc.operators.snapshot",
                    "airflow_provider_cdc.operators.extract_delta",
                    "airflow_provider_cdc.operators.consolidate",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "CDC",
                "python-modules": [
                    "airflow_provider_cdc.sensors.position",
                    "airflow_provider_cdc.sensors.published",
                    "airflow_provider_cdc.sensors.runway",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "CDC",
                "python-modules": [
                    "airflow_provider_cdc.triggers.position",
                    "airflow_provider_cdc.triggers.published",
                    "airflow_provider_cdc.triggers.runway",
                ],
            }
        ],
        "asset-uris": [
            {"schemes": ["x-cdc"], "handler": None, "to_openlineage_converter": "airflow_provider_cdc.lineage.of_asset"}
        ],
        "extra-links": ["airflow_provider_cdc.links.report.ReportLink"],
        "notifications": ["airflow_provider_cdc.notifications.failure.FailureNotifier"],
        "connection-types": [_connection_type(kind) for kind in KINDS],
    }


def _connection_type(kind: Kind) -> dict[str, Any]:
    return {
        "connection-type": kind.connection_types[0],
        "hook-class-name": kind.hook,
        "hook-name": f"{kind.title} (CDC)",
        "ui-field-behaviour": dict(kind.form),
        "conn-fields": {name: dict(field) for name, field in kind.fields.items()},
    }
