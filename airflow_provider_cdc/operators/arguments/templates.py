"""Renders templates in arguments. If a template cannot be rendered, the error names the argument and says what to write
instead."""

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
"""The names that templates can use only if the DAG run has a logical date."""


@keeps_native_types
class RendersClearly(BaseOperator):
    """A task whose templates Airflow renders as usual, but with clearer error messages."""

    @failing
    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Render the template fields.

        :raises AirflowFailException: a template cannot be rendered.
        """
        # Jinja2 is imported only here, because it is slow to import and Airflow parses DAGs often.
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
                # The message leaves out the template itself, which may hold a secret.
                raise _unclear(name, str(error.message)) from error
            setattr(self, name, rendered)


def _check_defined(rendered: Any) -> None:
    """Check the result of rendering. A template that consists only of an undefined name renders to an `Undefined`
    object.

    :raises UndefinedError: the result is or contains an `Undefined` object.
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
            f"cannot render the template: {message}",
            where=f"argument {argument}",
            hint="correct the template. The Templates reference of Airflow lists the names that a template may use",
        )
    return ConfigurationError(
        f"the template uses {lacking}, but this run was triggered without a logical date",
        where=f"argument {argument}",
        hint="trigger the run with a logical date. Or use dag_run.run_after in the template, because every run has it "
        f"({{{{ {lacking} if {lacking} is defined else dag_run.run_after }}}})",
    )
