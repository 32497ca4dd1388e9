"""All MySQL checks, for documents and tests.

Code that runs checks imports `asked` instead, because `asked` does not load any kernels.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.checks import Check
from airflow_provider_cdc.sources.mysql.checks.asked import OF_A_REQUEST
from airflow_provider_cdc.sources.mysql.checks.history import HISTORY
from airflow_provider_cdc.sources.mysql.checks.past import REPLACED, REPLICATED, SINCE, STATEMENTS
from airflow_provider_cdc.sources.mysql.checks.readers import READERS
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS_SINCE

CHECKS: tuple[Check[Any], ...] = (
    *OF_A_REQUEST,
    *HISTORY,
    *SETTINGS_SINCE,
    *REPLICATED,
    *SINCE,
    *STATEMENTS,
    *REPLACED,
    *READERS,
)
