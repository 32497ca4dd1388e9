"""What the sensors share: asking in a worker or in the triggerer, and bearing outages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.providers.common.compat.sdk import BaseSensorOperator
from airflow.sdk import PokeReturnValue

from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.operators.task_errors import airflow_error, failing
from airflow_provider_cdc.operators.templates import RendersClearly
from airflow_provider_cdc.triggers.waiting import Answer, Failure, Outage, WaitingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

OUTAGE_SECONDS = 600.0


class WaitingSensor(RendersClearly, BaseSensorOperator):
    """Waits until the answer to a question is yes, and returns what was found.

    ``timeout``, ``soft_fail`` and the rest are those of every sensor. Who is asked may fail to answer for
    ``outage_seconds`` at a time; in the mode ``reschedule``, which remembers nothing, until the ``timeout``.

    :param outage_seconds: how long an outage may last; then the try fails, and Airflow may retry it.
    :param deferrable: wait in the triggerer, without a worker. The default is Airflow's own:
        ``operators.default_deferrable``.
    """

    def __init__(
        self, *, outage_seconds: float = OUTAGE_SECONDS, deferrable: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.outage_seconds = outage_seconds
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        self._outage: Outage | None = None

    @abstractmethod
    def ask(self) -> Answer:
        """Ask once, in a worker."""

    @abstractmethod
    def trigger(self) -> WaitingTrigger:
        """What asks in the triggerer."""

    @failing
    def poke(self, context: Context) -> PokeReturnValue:
        if self._outage is None:
            self._outage = Outage(self.outage_seconds)
        try:
            answer = self.ask()
        except TransientError as error:
            self.log.warning("%s", self._outage.bear(error))
            return PokeReturnValue(False)
        self._outage.over()
        if not answer.yes:
            self.log.info("Not yet: %s", answer.said)
        return PokeReturnValue(answer.yes, answer.found)

    @failing
    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        # What can never work is told before anything waits for it.
        if answer := self.poke(context):
            return answer.xcom_value
        self.defer(trigger=self.trigger(), method_name="resume", timeout=timedelta(seconds=self.timeout))
        raise AssertionError("a task that is deferred ends there")

    @failing
    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """What Airflow calls when the trigger has fired.

        :raises AirflowFailException: the trigger failed, and a retry cannot help.
        :raises AirflowException: the trigger failed, and a retry may help.
        """
        if "failure" in event:
            failure = Failure(**event["failure"])
            raise airflow_error(failure.type, failure.message, terminal=failure.terminal)
        return event["found"]
