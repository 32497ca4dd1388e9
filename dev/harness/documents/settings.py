"""The table of settings in Airflow's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc.get_provider_info import get_provider_info


def setting_table() -> Iterator[Sequence[str]]:
    yield "setting", "default", "what it is", "example"
    for name, facts in get_provider_info()["config"]["cdc"]["options"].items():
        default = f"`{facts['default']}`" if facts["default"] else "none"
        yield f"`AIRFLOW__CDC__{name.upper()}`", default, facts["description"], f"`{facts['example']}`"
