"""The provider's description for Airflow, as a dict. This module imports neither Airflow nor a database driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.sinks.registry import FIELDS, FORM
from airflow_provider_cdc.sources.api.registry import KINDS, SourceKind

_DOCUMENTATION = "https://airflow-provider-cdc.github.io/airflow-provider-cdc"
_GUIDES = tuple(
    f"/docs/{page}.md" for page in ("concepts", "options", "dag-authors", "nightly", "reading", "deploying", "runbook")
)

_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "targets": {
        "description": "The folders in which the shipped DAGs may publish, folders below included, separated by commas "
        "or blanks. `*` matches any characters within a part of a path, and `*` alone any folder. `{source}` stands "
        "for the connection.",
        "example": "s3://lake/raw file:///data/lake",
    },
    "source_conn_ids": {
        "description": "The connections that the shipped DAGs may read, separated by commas or blanks. `*` matches any "
        "characters.",
        "example": "cdc_* shop_eu",
        "default": "cdc_*",
    },
    "production_targets": {
        "description": "The folders whose copies are the assets of their tables, separated by commas or blanks, for "
        "all connections or for one (`connection=folder`). Without it, `targets` decides.",
        "example": "s3://lake/raw cdc_shop=s3://lake/shop",
    },
    "report_urls": {
        "description": "Where a browser reads the reports of a folder (`folder=URL`), separated by commas or blanks. "
        "Without it, Airflow's UI has no link to a report, because it shows only web links.",
        "example": "s3://lake/raw=https://files.example.com/raw",
    },
    "nightly": {
        "description": "The path of the YAML file for the DAG `nightly`. Without it, the DAG reads `nightly.yaml` in "
        "its own folder.",
        "example": "/opt/airflow/nightly.yaml",
    },
}
"""The options of the section ``cdc`` of Airflow's configuration."""


SPARK_LAUNCHERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "emr_serverless": {"required": ("application_id", "execution_role_arn"), "optional": ("conn_id", "archive")},
    "databricks": {"required": ("conn_id", "cluster"), "optional": ("requirements",)},
    "dataproc_serverless": {
        "required": ("project_id", "region", "subnetwork_uri", "service_account"),
        "optional": ("conn_id", "archive", "image", "runtime_version"),
    },
    "kubernetes": {"required": ("namespace", "service_account", "image"), "optional": ()},
}
"""The platforms that run Spark jobs, each with its fields. The first is the default."""
SPARK_FIELDS: Mapping[str, Any] = {
    "launcher": {
        "label": "Platform",
        "description": "What runs the Spark jobs.",
        "schema": {"type": ["string", "null"], "enum": [None, *SPARK_LAUNCHERS]},
    },
    "conn_id": {
        "label": "Connection to the platform",
        "description": "The id of the connection to the platform, of type aws (empty: what the environment has), "
        "databricks or google_cloud_platform (empty: google_cloud_default).",
        "schema": {"type": ["string", "null"]},
    },
    "application_id": {
        "label": "Application",
        "description": "EMR Serverless: the id of the application.",
        "schema": {"type": ["string", "null"]},
    },
    "execution_role_arn": {
        "label": "Role of the jobs",
        "description": "EMR Serverless: the ARN of the role with which the jobs reach the lake.",
        "schema": {"type": ["string", "null"]},
    },
    "archive": {
        "label": "Archive of packages",
        "description": "EMR Serverless and Google: the URI of the archive that `python -m "
        "airflow_provider_cdc.bundle` wrote. Empty: the image has the packages.",
        "schema": {"type": ["string", "null"]},
    },
    "cluster": {
        "label": "Cluster",
        "description": "Databricks: the new_cluster of the Jobs API, such as spark_version, node_type_id, num_workers, "
        "policy_id and custom_tags, in JSON.",
        "schema": {"type": ["object", "null"]},
    },
    "requirements": {
        "label": "Requirements",
        "description": "Databricks: the path of the file with the packages, below /Volumes or /Workspace. Empty: the "
        "cluster has the packages.",
        "schema": {"type": ["string", "null"]},
    },
    "project_id": {
        "label": "Project",
        "description": "Google: the id of the project.",
        "schema": {"type": ["string", "null"]},
    },
    "region": {
        "label": "Region",
        "description": "Google: the region of the batches.",
        "schema": {"type": ["string", "null"]},
    },
    "subnetwork_uri": {
        "label": "Subnetwork",
        "description": "Google: the subnetwork of the batches, from which the source can be reached.",
        "schema": {"type": ["string", "null"]},
    },
    "service_account": {
        "label": "Service account of the jobs",
        "description": "Google and Kubernetes: the service account with which the jobs reach the lake.",
        "schema": {"type": ["string", "null"]},
    },
    "image": {
        "label": "Image",
        "description": "Google, in place of an archive, and Kubernetes: the container image with the packages.",
        "schema": {"type": ["string", "null"]},
    },
    "runtime_version": {
        "label": "Runtime",
        "description": "Google: the version of the runtime. Default: 3.0.",
        "schema": {"type": ["string", "null"]},
    },
    "namespace": {
        "label": "Namespace",
        "description": "Kubernetes: the namespace of the pods.",
        "schema": {"type": ["string", "null"]},
    },
    "limit_minutes": {
        "label": "Time limit",
        "description": "The longest time that a job may take, in minutes. Default: 1440.",
        "schema": {"type": ["string", "integer", "null"]},
    },
}
"""The fields of a connection of type ``cdc_spark``."""

_SPARK_HOOK = "airflow_provider_cdc.hooks.spark.CdcSparkHook"
_CATALOG_HOOK = "airflow_provider_cdc.hooks.catalog.CdcCatalogHook"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the format of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-cdc",
        "name": "CDC",
        "description": "Copies of MySQL and PostgreSQL tables in a lake, all of them exact at one committed point.",
        "integrations": [
            {
                "integration-name": "CDC",
                "external-doc-url": f"{_DOCUMENTATION}/",
                "how-to-guide": list(_GUIDES),
                "logo": "/docs/logo.svg",
                "tags": ["service"],
            }
        ],
        "hooks": [
            {
                "integration-name": "CDC",
                "python-modules": [
                    hook.rpartition(".")[0] for hook in (*(kind.hook for kind in KINDS), _CATALOG_HOOK, _SPARK_HOOK)
                ],
            },
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
                    "airflow_provider_cdc.triggers.pause",
                    "airflow_provider_cdc.triggers.position",
                    "airflow_provider_cdc.triggers.published",
                    "airflow_provider_cdc.triggers.runway",
                    "airflow_provider_cdc.triggers.spark_job",
                ],
            }
        ],
        "asset-uris": [
            {"schemes": ["x-cdc"], "handler": None, "to_openlineage_converter": "airflow_provider_cdc.lineage.of_asset"}
        ],
        "extra-links": ["airflow_provider_cdc.links.report.ReportLink"],
        "notifications": ["airflow_provider_cdc.notifications.failure.FailureNotifier"],
        "connection-types": [*(_connection_type(kind) for kind in KINDS), _catalog_type(), _spark_type()],
        "config": {
            "cdc": {
                "description": f"Settings of airflow-provider-cdc; see {_DOCUMENTATION}/options/.",
                "options": {name: _option(setting) for name, setting in _SETTINGS.items()},
            }
        },
    }


def _option(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {"version_added": "0.2.0", "type": "string", "default": None, **setting}


def _connection_type(kind: SourceKind) -> dict[str, Any]:
    return {
        "connection-type": kind.connection_types[0],
        "hook-class-name": kind.hook,
        "hook-name": f"{kind.title} (CDC)",
        "ui-field-behaviour": dict(kind.form),
        "conn-fields": {name: dict(field) for name, field in kind.fields.items()},
    }


def _catalog_type() -> dict[str, Any]:
    return {
        "connection-type": "cdc_catalog",
        "hook-class-name": _CATALOG_HOOK,
        "hook-name": "Iceberg catalog (CDC)",
        "ui-field-behaviour": dict(FORM),
        "conn-fields": {name: dict(field) for name, field in FIELDS.items()},
    }


def _spark_type() -> dict[str, Any]:
    return {
        "connection-type": "cdc_spark",
        "hook-class-name": _SPARK_HOOK,
        "hook-name": "Spark platform (CDC)",
        "ui-field-behaviour": {
            "hidden-fields": ["extra", "port", "host", "schema", "login", "password"],
            "relabeling": {},
            "placeholders": {},
        },
        "conn-fields": {name: dict(field) for name, field in SPARK_FIELDS.items()},
    }
