"""Triggers tolerate outages for a limited time, and no password is stored with them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import BaseSerialization

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import CopyName
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sensors.position import PositionSensor
from airflow_provider_cdc.sensors.published import PublishedSensor
from airflow_provider_cdc.sensors.runway import RunwaySensor
from airflow_provider_cdc.triggers import waiting
from airflow_provider_cdc.triggers.position import PositionTrigger
from airflow_provider_cdc.triggers.published import PublishedTrigger, WantedCopy
from airflow_provider_cdc.triggers.runway import RunwayTrigger
from airflow_provider_cdc.triggers.waiting import Answer, Outage, WaitingTrigger
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.server_process import free_port
from tests.sinks.test_contract import Lake

PASSWORD = "c0rrect-horse-battery"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
PATIENCE = 60
"""Seconds in which any answer comes, on a busy machine too."""


async def next_of(trigger: WaitingTrigger) -> Any:
    return (await anext(aiter(trigger.run()))).payload


def event_of(trigger: WaitingTrigger) -> Any:
    return asyncio.run(asyncio.wait_for(next_of(trigger), PATIENCE))


def connect(monkeypatch: pytest.MonkeyPatch, port: int, login: str = "root", password: str = "") -> None:
    fields = {"conn_type": "cdc_mysql", "host": "127.0.0.1", "port": port, "login": login, "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(fields))


def test_an_outage_is_borne_for_as_long_as_was_said_and_counts_from_the_last_answer() -> None:
    now = 100.0
    outage = Outage(10, clock=lambda: now)
    error = SourceUnavailable("down")
    assert "10 s more" in outage.bear(error)
    now = 109.0
    assert "1 s more" in outage.bear(error)
    outage.over()
    now = 118.0
    assert "10 s more" in outage.bear(error)
    now = 128.0
    with pytest.raises(SourceUnavailable):
        outage.bear(error)


class Scripted(WaitingTrigger):
    """Gives scripted answers; None stands for no answer. ``clock`` returns how often it has asked."""

    def __init__(self, *answers: bool | None, outage_seconds: float) -> None:
        super().__init__(poll_seconds=0.0, outage_seconds=outage_seconds)
        self.answers = list(answers)
        self.asked = 0

    def clock(self) -> float:
        return float(self.asked)

    async def ask(self) -> Answer:
        self.asked += 1
        answer = self.answers.pop(0)
        if answer is None:
            raise SourceUnavailable("down")
        return Answer(answer, "", "it")


def test_two_short_outages_are_not_one_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(*answers: bool | None) -> Any:
        scripted = Scripted(*answers, outage_seconds=2.5)
        monkeypatch.setattr(waiting, "Outage", partial(Outage, clock=scripted.clock))
        return event_of(scripted)

    assert event(None, None, False, None, None, True) == {"found": "it"}
    assert "failure" in event(None, None, None, None, None, True)


def test_a_trigger_survives_the_way_into_the_database_and_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, 1, "copier", PASSWORD)
    position = PositionTrigger(
        source_conn_id="shop", position="2026-01-31T00:00:00Z", poll_seconds=5, outage_seconds=60
    )
    wanted = {"position": "16/B374D848", "published_after": "", "other_than_run": "x"}
    published = PublishedTrigger(
        target="s3://lake", table="shop.orders", wanted=wanted, poll_seconds=5, outage_seconds=60, columns=["id"]
    )
    runway = RunwayTrigger(source_conn_id="shop", hours=6.5, poll_seconds=5, outage_seconds=60)
    for trigger in (position, published, runway):
        path, arguments = trigger.serialize()
        assert PASSWORD not in json.dumps(arguments)
        assert BaseSerialization.deserialize(BaseSerialization.serialize(arguments)) == arguments
        module, _, name = path.rpartition(".")
        assert type(trigger).__module__ == module
        assert type(trigger).__qualname__ == name
        assert type(trigger)(**arguments).serialize() == (path, arguments)


def test_a_server_that_does_not_answer_for_too_long_is_an_error_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, free_port(), "copier", PASSWORD)
    trigger = PositionTrigger(source_conn_id="shop", position=f"{UUID}:1", poll_seconds=0.2, outage_seconds=0.5)
    failure = event_of(trigger)["failure"]
    assert not failure["terminal"]
    assert "does not answer" in failure["message"]
    assert PASSWORD not in failure["message"]


def test_a_refused_password_is_an_error_that_waiting_does_not_help(
    mysql: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, mysql.port, "root", PASSWORD)
    trigger = PositionTrigger(source_conn_id="shop", position=f"{UUID}:1", poll_seconds=0.2, outage_seconds=60)
    failure = event_of(trigger)["failure"]
    # The next try of the task takes the present password.
    assert (failure["type"], failure["terminal"]) == ("LoginRefused", False)
    assert PASSWORD not in failure["message"]


def test_a_position_that_comes_while_it_is_waited_for_is_noticed(
    mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, mysql.port)
    # The server's own numbers have gaps that other tests left, and fills them.
    other = uuid4()
    trigger = PositionTrigger(source_conn_id="shop", position=f"{other}:1-2", poll_seconds=0.1, outage_seconds=60)

    def commit(number: int) -> None:
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET gtid_next = '{other}:{number}'")
            cursor.execute(f"CREATE TABLE {schema}.t{number} (id INT PRIMARY KEY)")

    async def wait() -> Any:
        first = asyncio.create_task(next_of(trigger))
        await asyncio.sleep(1.0)
        assert not first.done(), first.result()
        for number in (1, 2):
            await asyncio.to_thread(commit, number)
        return await asyncio.wait_for(first, PATIENCE)

    assert asyncio.run(wait()) == {"found": f"{other}:1-2"}


@pytest.mark.parametrize("text", ["", "soon", "2026-01-31T00:00:00", ",", "3e11fa47-71ca-11e1-9e33-c80aa9429562:x"])
def test_what_is_no_position_is_refused_before_anything_waits(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, 1)
    sensor = PositionSensor(task_id="wait", source_conn_id="shop", position=text, deferrable=True)
    assert isinstance(sensor, BaseSensorOperator)
    with pytest.raises(Exception, match="parameter position") as refused:
        sensor.execute({})
    assert type(refused.value).__name__ == "PositionError"
    assert isinstance(refused.value, AirflowFailException)


def within(seconds: float, trigger: WaitingTrigger) -> Any:
    """Its event; None if there is none by then."""

    async def wait() -> Any:
        try:
            return await asyncio.wait_for(next_of(trigger), seconds)
        except TimeoutError:
            return None

    return asyncio.run(wait())


def runway_of(hours: float, seconds: float = PATIENCE) -> Any:
    trigger = RunwayTrigger(source_conn_id="shop", hours=hours, poll_seconds=0.1, outage_seconds=PATIENCE)
    return within(seconds, trigger)


@pytest.mark.slow
def test_a_server_that_throws_its_log_away_too_soon_is_waited_for(
    mysql: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, mysql.port)
    ((before,),) = mysql.query("SELECT @@GLOBAL.binlog_expire_logs_seconds")
    try:
        mysql.query("SET GLOBAL binlog_expire_logs_seconds = 7200")
        assert runway_of(2)["found"] == {"hours": 2.0, "why": "binlog_expire_logs_seconds"}
        assert runway_of(2.1, seconds=3) is None
        mysql.query("SET GLOBAL binlog_expire_logs_seconds = 0")
        assert runway_of(100_000)["found"]["hours"] is None
    finally:
        mysql.query("SET GLOBAL binlog_expire_logs_seconds = %s", (before,))


@pytest.mark.slow
def test_a_slot_that_may_keep_too_little_log_is_waited_for(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"conn_type": "cdc_postgres", "host": postgres.host, "port": postgres.port, "login": SUPERUSER}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**fields, "schema": "postgres"}))
    assert runway_of(100_000)["found"]["hours"] is None
    try:
        postgres.query("ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'")
        postgres.reload()
        postgres.query("CREATE TABLE much AS SELECT generate_series(1, 300000) AS n")
        assert runway_of(1_000_000, seconds=3) is None
        assert runway_of(0.0001)["found"]["hours"] > 0
    finally:
        postgres.query("DROP TABLE IF EXISTS much")
        postgres.query("ALTER SYSTEM RESET max_slot_wal_keep_size")
        postgres.reload()


@pytest.mark.parametrize("hours", ["", "soon", 0, -1, "nan", "inf", None])
def test_what_is_no_time_to_last_is_refused_before_anything_waits(hours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, 1)
    sensor = RunwaySensor(task_id="wait", source_conn_id="shop", hours=hours, deferrable=True)
    assert isinstance(sensor, BaseSensorOperator)
    with pytest.raises(AirflowFailException, match="parameter hours"):
        sensor.execute({})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("parquet", Storage(tmp_path.as_uri()))


def trigger_of(lake: Lake, wanted: dict[str, str]) -> WaitingTrigger:
    return PublishedTrigger(
        target=lake.storage.uri, table="shop.orders", wanted=wanted, poll_seconds=0.05, outage_seconds=1
    )


def published(lake: Lake, **wanted: str) -> Any:
    return event_of(trigger_of(lake, wanted))


def still_waits(lake: Lake, **wanted: str) -> bool:
    return within(1, trigger_of(lake, wanted)) is None


@pytest.mark.slow
def test_a_copy_counts_when_it_has_what_is_waited_for_and_not_before(lake: Lake) -> None:
    assert still_waits(lake)
    lake.sink.publish(lake.stage(5, run_id="20260105T000000Z-00000005"))
    found = published(lake)["found"]
    assert (found["table"], found["run_id"], found["rows"]) == ("shop.orders", "20260105T000000Z-00000005", 3)
    assert found["position"] == f"{UUID}:1-5"
    assert published(lake, position=f"{UUID}:1-5")
    assert still_waits(lake, position=f"{UUID}:1-6")
    assert still_waits(lake, other_than_run="20260105T000000Z-00000005")
    assert published(lake, other_than_run="20260104T000000Z-00000004")
    # The run was due then, and it recorded its position later.
    assert published(lake, position="2026-01-05T00:00:00Z")
    assert still_waits(lake, position="2026-01-05T00:00:01Z")
    assert published(lake, published_after="2025-12-31T23:59:59Z")
    assert still_waits(lake, published_after="2026-01-01T00:00:00Z")


def test_a_record_of_an_earlier_version_does_not_say_when_its_copy_was_published(lake: Lake) -> None:
    lake.sink.publish(lake.stage(5))
    record = "shop.orders/_latest.json"
    told = lake.storage.read_json(record)
    lake.storage.write_json(record, {name: told[name] for name in ("run_id", "initial_gtid_set")})
    assert published(lake, position=f"{UUID}:1-5")
    assert still_waits(lake, published_after="2025-12-31T23:59:59Z")
    lake.sink.publish(lake.stage(6))
    assert published(lake, published_after="2025-12-31T23:59:59Z")


def test_a_copy_of_a_part_is_not_taken_for_one_of_the_table_or_of_another_part(lake: Lake) -> None:
    publication = lake.stage(5)
    (change,) = (one for one in publication.tables if str(one.table) == "shop.orders")
    part = replace(change, table=CopyName.of(change.table, selection_of("id = 1", ["id"])))
    lake.sink.publish(replace(publication, tables=(part,)))
    for where, columns, found in (
        ("id=1", ["id"], True),
        ("", [], False),
        ("id = 1", [], False),
        ("id = 2", ["id"], False),
    ):
        sensor = PublishedSensor(
            task_id="t", target=lake.storage.uri, table="shop.orders", where=where, columns=columns or None
        )
        assert sensor.ask().yes == found
        trigger = PublishedTrigger(**sensor.trigger().serialize()[1])
        assert asyncio.run(trigger.ask()).yes == found


def test_a_copy_as_of_the_past_is_not_taken_for_one_of_the_time_of_its_run(lake: Lake) -> None:
    publication = lake.stage(5, run_id="20260105T000000Z-00000005")
    lake.sink.publish(type(publication)(**{**vars(publication), "as_of": "2026-01-02T00:00:00+00:00"}))
    assert published(lake, position="2026-01-02T00:00:00Z")
    assert still_waits(lake, position="2026-01-02T00:00:01Z")


def test_a_position_that_cannot_be_compared_ends_the_waiting(lake: Lake) -> None:
    lake.sink.publish(lake.stage(5))
    failure = published(lake, position="16/B374D848")["failure"]
    assert failure["terminal"]
    assert "cannot be compared" in failure["message"]
    failure = published(lake, published_after="16/B374D848")["failure"]
    assert "published_after: it is not a time" in failure["message"]


@pytest.mark.slow
def test_all_that_is_wanted_has_to_hold() -> None:
    for wanted in (
        WantedCopy(position="soon"),
        WantedCopy(published_after="1/2"),
        WantedCopy(position="1/2", published_after=","),
    ):
        with pytest.raises(Exception, match="parameter"):
            wanted.check()
