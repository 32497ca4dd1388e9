"""What a DAG's author decides, whoever triggers its runs: the options that no run can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import FLAG, PATTERNS, option


@dataclass(frozen=True)
class AuthorOptions:
    """Which sources and targets the runs of a DAG may use, and how strict it is with their conf."""

    source_conn_ids: Sequence[str] | None = option(
        None,
        accepts=PATTERNS,
        fixed=True,
        help="The connections that `source_conn_id` may name, `*` for any run of characters; None: any. Whoever may "
        "trigger a DAG fills its params, but the tasks have Airflow's rights: give this and `targets` where "
        "`source_conn_id` or `target` is a template.",
        example='a list such as ["cdc_*"]',
    )
    targets: Sequence[str] | None = option(
        None,
        accepts=PATTERNS,
        fixed=True,
        help="The folders in which, or below which, `target` and `scratch` may lie, compared part by part; `*` stands "
        "for any run of characters in a part, `*` alone for any target; None: any.",
        example='a list such as ["s3://bucket/lake"]',
    )
    strict_conf: bool = option(
        False,
        accepts=FLAG,
        fixed=True,
        help="Refuse DAG runs whose conf has keys that are no params of the DAG: a misspelt one is otherwise ignored.",
        example="true or false",
    )
