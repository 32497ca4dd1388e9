"""Which Airflow this package runs on. What needs Airflow calls ``check`` before it imports anything of it."""

from __future__ import annotations

import re

from airflow_provider_cdc.errors import ConfigurationError

OLDEST = (3, 1, 5)


def check() -> None:
    """Refuse an Airflow on which imports would fail later and elsewhere, with words that say nothing of it.

    :raises ConfigurationError: it is older than the oldest one that was tested.
    """
    import airflow

    numbers = tuple(int(number) for number in re.findall(r"\d+", airflow.__version__)[:3])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigurationError(
            f"airflow-provider-cdc needs Apache Airflow {oldest} or later, and this is {airflow.__version__}",
            hint=f"pip install 'apache-airflow>={oldest}'",
        )
