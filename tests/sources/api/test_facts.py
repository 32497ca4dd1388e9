"""Records that the version before typed facts wrote still mean the same. It wrote the manifests in ``recorded`` during
runs on real servers; their tables but one were left out later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.facts import Facts, Reached
from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.core.run.ledger import Link
from airflow_provider_cdc.core.run.manifest import FORMAT, Manifest
from airflow_provider_cdc.core.run.published_v5 import converted
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import PositionError
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts, PublicationState

DIGESTS = {"mysql": "f23f04b47d2d4ca48349d0059853b7e8", "postgres": "089970c9447ab2421d13b24ff64e0b69"}
"""As the version that wrote the manifests computed them. Records of steps and the names of folders contain them."""

MYSQL = MysqlFacts(
    server_uuid="f31c3288-ebde-11f1-9116-02fc00000001",
    hostname="vm",
    started="1795947821",
    begun=LogPlace("binlog.000001", 37566, "1795947824"),
    mark="binlog.000001:37566@1795947824 a34a2d5c3e239fde c9f6c5f254ccf331",
    fixed={
        "innodb_native_foreign_keys": "OFF",
        "log_replica_updates": "ON",
        "lower_case_table_names": "0",
        "version": "9.7.4-2",
        "binlog_do_db": "",
        "binlog_ignore_db": "",
    },
    last_set={"binlog_error_action": "", "binlog_order_commits": "", "replica_preserve_commit_order": ""},
)
SLOT = "cdc_20260102t000000z_00000000_17bbdb2a"
POSTGRES = PostgresFacts(
    system_identifier="1807712240452381269",
    timeline="1",
    database="postgres",
    database_oid="5",
    version="18.4",
    lc_monetary="C.UTF-8",
    mark="834",
    slot=SLOT,
    publication=PublicationState(SLOT, "04d86a96091fdf97932b4593035a27cd"),
    publication_made=True,
    since="834",
    forward_slots={Lsn.parse("0/2010F20"): "cdc_20260102t000000z_00000000_35a8a376"},
    standing=PublicationState("cdc_standing_night_5"),
)
SOURCES = {
    "mysql": {"kind": "mysql", "server": "f31c3288-ebde-11f1-9116-02fc00000001"},
    "postgres": {"kind": "postgres", "server": "1807712240452381269", "database": "postgres", "timeline": "1"},
}
LINK = Link(
    number=1,
    token="t",
    start=LogEnd(""),
    end=LogEnd("binlog.000002:4@1795947900"),
    upper="f31c3288-ebde-11f1-9116-02fc00000001:1-200",
    incarnation="1795947821",
    restarts=1,
    next_segment=2,
    record="delta/spool/files.json",
    known="{}",
)


def recorded(kind: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((Path(__file__).parent / "recorded" / f"{kind}.json").read_text())
    return data


def facts_in(kind: str) -> list[Facts]:
    data = recorded(kind)
    others = [*data["bases"].values(), *data["earlier_reads"].values()]
    return [Facts.parse(one["identity"]) for one in (data, *others)]


def _named_in(data: Any, encoded: Any) -> Any:
    """Leave out what ``data`` does not name."""
    return {name: _named_in(data[name], encoded[name]) for name in data} if isinstance(data, dict) else encoded


@pytest.mark.parametrize("kind", DIGESTS)
def test_a_recorded_manifest_keeps_its_names_its_digest_and_its_source(kind: str) -> None:
    manifest = records.decode(Manifest, converted(recorded(kind)), "")
    encoded, data = json.loads(json.dumps(records.encode(manifest))), converted(recorded(kind))
    # Later versions have more options, and more facts about a table.
    encoded["options"] = _named_in(data["options"], encoded["options"])
    assert {name: encoded[name] for name in data if name != "tables"} | {"tables": data["tables"]} == data
    tables = zip(encoded["tables"], data["tables"], strict=True)
    assert [{name: one[name] for name in was} for one, was in tables] == data["tables"]
    assert records.digest_of(recorded(kind)) == DIGESTS[kind]
    connection = recorded(kind)["source_conn_id"]
    assert manifest.source == SOURCES[kind] | ({"connection": connection} if connection else {})
    assert manifest.identity.mark == recorded(kind)["identity"]["history_mark"]


def test_recorded_facts_are_decoded_and_encoded_without_a_loss() -> None:
    mysql, postgres = (records.decode(Manifest, converted(recorded(kind)), "") for kind in ("mysql", "postgres"))
    assert MysqlFacts.of(mysql.identity) == MYSQL
    assert PostgresFacts.of(postgres.identity) == POSTGRES
    assert all(MysqlFacts.of(facts).recorded() == facts for facts in facts_in("mysql"))
    assert all(PostgresFacts.of(facts).recorded() == facts for facts in facts_in("postgres"))
    assert len(facts_in("mysql")) == 3
    assert len(facts_in("postgres")) == 2


def test_facts_of_a_publication_of_others_and_of_rows_that_are_read_again() -> None:
    told = {
        "slot": "cdc_1",
        "publication": "cdc_standing_night_5",
        "publication_made": "",
        "publication_state": "16385:3",
        "publication_relations": "16385,16390",
        "standing_publication": "cdc_standing_night_5",
        "standing_state": "16385:4",
        "standing_relations": "16385",
        "forward_slots": '{"0/9": "cdc_2"}',
    }
    facts = PostgresFacts.of(Facts(told))
    assert facts.publication == PublicationState("cdc_standing_night_5", "16385:3", "16385,16390")
    assert facts.standing == PublicationState("cdc_standing_night_5", "16385:4", "16385")
    assert (facts.publication_made, facts.since, facts.forward_slots) == (False, None, {Lsn(9): "cdc_2"})
    assert facts.recorded().fields() == told


def test_facts_of_older_versions_lack_what_these_did_not_record() -> None:
    facts = MysqlFacts.of(Facts({"server_uuid": "u", "uptime": "1"}))
    assert facts == MysqlFacts("u")
    with pytest.raises(PositionError, match="no place in the log"):
        facts.place  # noqa: B018


def test_a_run_in_progress_goes_on_behind_its_recorded_pieces(tmp_path: Path) -> None:
    scratch = Storage(f"file://{tmp_path}")
    data = converted(recorded("mysql")) | {"scratch": scratch.uri, "format": FORMAT}
    run = Run.create(records.decode(Manifest, data, ""))
    spooling = MysqlFacts.of(run.expected_identity())
    assert (spooling.may_move, spooling.reached, spooling.needed_from) == (True, None, MYSQL.begun)
    assert run.take_piece("", LINK)
    behind = MysqlFacts.of(run.expected_identity())
    end = LogEnd("binlog.000002:4@1795947900")
    assert behind.reached == Reached(end, "f31c3288-ebde-11f1-9116-02fc00000001:1-200", "1795947821", 1, "{}")
    assert behind.needed_from == LogPlace("binlog.000002", 4, "1795947900")
    assert behind.place == MYSQL.begun
    # The pieces are known from their own records.
    assert run.expected_identity().fields() == data["identity"]
