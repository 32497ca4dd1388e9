"""What Airflow is told about this package. A plain dict: every ``airflow`` command reads it, so it imports nothing."""

from __future__ import annotations

from typing import Any

_TLS_FIELDS: dict[str, Any] = {
    "tls_mode": {
        "label": "TLS mode",
        "description": (
            "Without one: verify_ca if an authority is given, else required; on this machine encrypt where offered."
        ),
        "schema": {
            "type": ["string", "null"],
            "enum": [None, "disabled", "preferred", "required", "verify_ca", "verify_identity"],
        },
    },
    "tls_ca": {
        "label": "TLS authority",
        "description": "Path of the PEM file with the authority that signed the server's certificate.",
        "schema": {"type": ["string", "null"]},
    },
    "tls_cert": {
        "label": "TLS certificate",
        "description": "Path of the PEM file with the client's certificate, where the server asks for one.",
        "schema": {"type": ["string", "null"]},
    },
    "tls_key": {
        "label": "TLS key",
        "description": "Path of the PEM file with the key of the client's certificate.",
        "schema": {"type": ["string", "null"]},
    },
    "tls_trusted_network": {
        "label": "Trusted network",
        "description": "Nobody else is in the network between: the password may be shown to whoever answers there.",
        "schema": {"type": ["boolean", "null"]},
    },
}

_TLS_SERVER_KEY: dict[str, Any] = {
    "label": "Server's RSA key",
    "description": "Path of the PEM file with the server's public key, for the password where TLS is disabled.",
    "schema": {"type": ["string", "null"]},
}

_TLS_CHANNEL_BINDING: dict[str, Any] = {
    "label": "Channel binding",
    "description": "require: the server must prove, without an authority, that it knows the password (SCRAM over TLS).",
    "schema": {"type": ["string", "null"], "enum": [None, "disable", "prefer", "require"]},
}


def get_provider_info() -> dict[str, Any]:
    """The provider's description, as ``provider_info.schema.json`` of Airflow wants it."""
    return {
        "package-name": "airflow-provider-cdc",
        "name": "CDC",
        "description": "Copies of MySQL and PostgreSQL tables in a lake, all of them exact at one committed point.",
        "integrations": [{"integration-name": "CDC", "tags": ["service"]}],
        "hooks": [
            {
                "integration-name": "CDC",
                "python-modules": ["airflow_provider_cdc.hooks.mysql", "airflow_provider_cdc.hooks.postgres"],
            }
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
        "connection-types": [
            {
                "connection-type": "cdc_mysql",
                "hook-class-name": "airflow_provider_cdc.hooks.mysql.CdcMysqlHook",
                "hook-name": "MySQL (CDC)",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "extra"],
                    "relabeling": {"login": "User"},
                    "placeholders": {"host": "mysql.example.com", "port": "3306", "login": "cdc"},
                },
                "conn-fields": {**_TLS_FIELDS, "tls_server_key": _TLS_SERVER_KEY},
            },
            {
                "connection-type": "cdc_postgres",
                "hook-class-name": "airflow_provider_cdc.hooks.postgres.CdcPostgresHook",
                "hook-name": "PostgreSQL (CDC)",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra"],
                    "relabeling": {"login": "User", "schema": "Database"},
                    "placeholders": {
                        "host": "postgres.example.com",
                        "port": "5432",
                        "login": "cdc",
                        "schema": "shop",
                    },
                },
                "conn-fields": {
                    "publication": {
                        "label": "Publication",
                        "description": "One that holds the tables already, for users who may not create any.",
                        "schema": {"type": ["string", "null"]},
                    },
                    **_TLS_FIELDS,
                    "tls_channel_binding": _TLS_CHANNEL_BINDING,
                },
            },
        ],
    }
