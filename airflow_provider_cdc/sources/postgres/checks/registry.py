"""Lists all checks of PostgreSQL, for documents and tests. Code that runs checks imports `asked` instead, because
`asked` loads no kernels."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.checks import Check
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_REQUEST, OF_TABLES
from airflow_provider_cdc.sources.postgres.checks.history import HISTORY
from airflow_provider_cdc.sources.postgres.checks.past import PAST
from airflow_provider_cdc.sources.postgres.checks.readers import READERS

CHECKS: tuple[Check[Any], ...] = (*OF_A_REQUEST, *OF_TABLES, *HISTORY, *PAST, *READERS)
