"""The oldest supported version of Airflow. Modules that need Airflow call ``check`` before they import it."""

from __future__ import annotations

import re

from airflow_provider_cdc.errors import ConfigurationError

OLDEST = (3, 1, 5)


def check() -> None:
    """Check the version of Airflow. With an older version, a later import would fail with an unrelated message.

    :raises ConfigurationError: the installed Airflow is older than the oldest supported version.
    """
    import airflow

    numbers = tuple(int(number) for number in re.findall(r"\d+", airflow.__version__)[:3])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigurationError(
            f"airflow-provider-cdc needs Apache Airflow {oldest} or later, but this is {airflow.__version__}",
            hint=f"pip install 'apache-airflow>={oldest}'",
        )
