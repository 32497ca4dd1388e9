"""Options that only the DAG's author can set. A DAG run cannot override them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import FLAG, PATTERNS, option


@dataclass(frozen=True)
class AuthorOptions:
    """The options that limit the sources and targets of a DAG's runs, and that say how strictly the conf of a run is
    checked."""

    source_conn_ids: Sequence[str] | None = option(
        None,
        accepts=PATTERNS,
        fixed=True,
        help="The connections that `source_conn_id` may name. `*` matches any run of characters. None: any connection. "
        "Every user who may trigger the DAG can set its params, but the tasks run with Airflow's rights. So set "
        "`source_conn_ids` and `targets` if `source_conn_id` or `target` is a template.",
        example='a list such as ["cdc_*"]',
    )
    targets: Sequence[str] | None = option(
        None,
        accepts=PATTERNS,
        fixed=True,
        help="The allowed folders for `target` and `scratch`. Their subfolders are allowed, too. Paths are compared "
        "part by part, and `*` matches any run of characters in one part. `*` alone matches any target. None: any "
        "target.",
        example='a list such as ["s3://bucket/lake"]',
    )
    strict_conf: bool = option(
        False,
        accepts=FLAG,
        fixed=True,
        help="Reject a DAG run if its conf has keys that are not params of the DAG. If false, misspelt keys are "
        "ignored.",
        example="true or false",
    )
