"""Templates in arguments: one that cannot be rendered is an error that says which, and what to write instead."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_cdc.compat import keeps_native_types, raise_undefined
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.task_errors import failing

WITH_A_LOGICAL_DATE = (
    "logical_date ds ds_nodash ts ts_nodash ts_nodash_with_tz data_interval_start data_interval_end "
    "prev_data_interval_start_success prev_data_interval_end_success"
).split()
"""What templates can use only in a run that has a logical date."""


@keeps_native_types
class RendersClearly(BaseOperator):
    """A task whose templates are rendered as Airflow does it, but for what is told when one cannot be."""

    @failing
    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """:raises AirflowFailException: a template cannot be rendered."""
        # Jinja2 takes a while to import, and DAGs are parsed all the time.
        from jinja2.exceptions import TemplateError

        environment = jinja_env or self.get_template_env()
        for name in self.template_fields:
            value = getattr(self, name)
            if not value:
                continue
            try:
                if callable(value):
                    rendered = value(context=context, jinja_env=environment)
                else:
                    rendered = self.render_template(value, context, environment, set())
                _check_defined(rendered)
            except TemplateError as error:
                # Not the template itself: it may hold what should not be shown.
                raise _unclear(name, str(error.message)) from error
            setattr(self, name, rendered)


def _check_defined(rendered: Any) -> None:
    """What stands alone in a template, and is not defined, is itself what was rendered.

    :raises UndefinedError: it is.
    """
    from jinja2 import Undefined

    if isinstance(rendered, Undefined):
        raise_undefined(rendered)
    elif isinstance(rendered, dict):
        for value in rendered.values():
            _check_defined(value)
    elif isinstance(rendered, (list, tuple)):
        for value in rendered:
            _check_defined(value)


def _unclear(argument: str, message: str) -> ConfigurationError:
    lacking = next((name for name in WITH_A_LOGICAL_DATE if message == f"{name!r} is undefined"), "")
    if not lacking:
        return ConfigurationError(
            f"its template cannot be rendered: {message}",
            where=f"argument {argument}",
            hint="correct the template; Airflow's page on templates lists the names that it may use",
        )
    return ConfigurationError(
        f"its template uses {lacking}, which this run does not have: it was triggered without a logical date",
        where=f"argument {argument}",
        hint="trigger the run with a logical date; or have the template use dag_run.run_after, which every run has "
        f"({{{{ {lacking} if {lacking} is defined else dag_run.run_after }}}})",
    )
