"""The base class of the sensors. It implements polling in a worker or in the triggerer, and the tolerance of
outages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.providers.common.compat.sdk import BaseSensorOperator
from airflow.sdk import PokeReturnValue

from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.operators.arguments.templates import RendersClearly
from airflow_provider_cdc.operators.task_errors import airflow_error, failing
from airflow_provider_cdc.triggers.waiting import Answer, Outage, WaitFailure, WaitingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

OUTAGE_SECONDS = 600.0


class WaitingSensor(RendersClearly, BaseSensorOperator):
    """Polls a server or store until the answer is yes, and returns the result.

    ``timeout``, ``soft_fail`` and the other arguments are the same as for every sensor. The server or store may be
    unreachable for ``outage_seconds`` at a time. The mode ``reschedule`` keeps no state between polls, so in this mode
    the server or store may be unreachable until the ``timeout``.

    :param outage_seconds: how long an outage may last. After a longer outage the try fails, and Airflow may retry it.
    :param deferrable: wait in the triggerer, without a worker. The default is Airflow's setting
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
        """Poll once, in a worker."""

    @abstractmethod
    def trigger(self) -> WaitingTrigger:
        """Return the trigger that polls in the triggerer."""

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
            self.log.info("Not yet: %s", answer.text)
        return PokeReturnValue(answer.yes, answer.found)

    @failing
    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        # Poll once before deferring, so that a wrong parameter fails the task at once.
        if answer := self.poke(context):
            return answer.xcom_value
        self.defer(trigger=self.trigger(), method_name="resume", timeout=timedelta(seconds=self.timeout))
        raise AssertionError("defer() returned, although it ends the task")

    @failing
    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the trigger's result. Airflow calls this when the trigger has fired.

        :raises AirflowFailException: the trigger failed, and a retry cannot help.
        :raises AirflowException: the trigger failed, and a retry may help.
        """
        if "failure" in event:
            failure = WaitFailure(**event["failure"])
            raise airflow_error(failure.type, failure.message, terminal=failure.terminal)
        return event["found"]
