"""A time, or a GTID set, means one prefix of the log. The oracle is mysqlbinlog, which prints each commit's time."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import LogGone, SourceReplaced, UnknownEvent
from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_at, prefix_of
from airflow_provider_cdc.sources.mysql.server.log_history import previous_gtids
from airflow_provider_cdc.sources.mysql.server.session import session
from harness.mysql_server import MysqlServer
from tests.conftest import MysqlFactory
from tests.seeds import seeds
from tests.servers import throw_away_mysql
from tests.sources.mysql.log.reading import executed, settings

_COMMIT = re.compile(r"immediate_commit_timestamp=(\d+).*?SET @@SESSION\.GTID_NEXT= '([^']+)'", re.DOTALL)
FOREIGN = "11111111-2222-3333-4444-555555555555"

Commit = tuple[str, int]


def commits_of(server: MysqlServer) -> list[Commit]:
    """All commits in log order: GTID, and microseconds since 1970."""
    names = [str(row[0]) for row in server.query("SHOW BINARY LOGS")]
    files = [str(server.directory / "data" / name) for name in names]
    printed = subprocess.run(
        [*server.tool("mysqlbinlog"), "--no-defaults", *files], check=True, capture_output=True, text=True
    )
    return [(gtid, int(when)) for when, gtid in _COMMIT.findall(printed.stdout)]


def at(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def until(commits: list[Commit], when: int) -> GtidSet:
    """The longest prefix of the log without a commit after that time."""
    first = next((index for index, commit in enumerate(commits) if commit[1] > when), len(commits))
    return GtidSet.parse(",".join(gtid for gtid, _ in commits[:first]))


@pytest.fixture(scope="module")
def busy() -> Iterator[MysqlServer]:
    """A server with a history: several files, tags, compression, transactions of another server, DDL, and an XA one."""
    with throw_away_mysql() as server:
        dice = random.Random(20)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)")
            for number in range(300):
                choice = dice.random()
                cursor.execute(f"SET binlog_transaction_compression = {'ON' if choice < 0.2 else 'OFF'}")
                if choice < 0.15:
                    cursor.execute("SET gtid_next = 'AUTOMATIC:night'")
                elif choice < 0.3:
                    cursor.execute(f"SET gtid_next = '{FOREIGN}:{number + 1}'")
                elif choice < 0.35:
                    cursor.execute(f"SET gtid_next = '{FOREIGN}:tag_{number % 3}:{number + 1}'")
                if 0.35 <= choice < 0.4:
                    cursor.execute("FLUSH BINARY LOGS")
                if 0.4 <= choice < 0.43:
                    cursor.execute(f"CREATE TABLE d.other_{number} (id INT PRIMARY KEY)")
                elif 0.43 <= choice < 0.46:
                    for statement in ("START", "", "END", "PREPARE", "COMMIT"):
                        cursor.execute(
                            f"XA {statement} 'x{number}'" if statement else "INSERT INTO d.t (v) VALUES ('xa')"
                        )
                else:
                    size = 3_000_000 if choice > 0.99 else dice.randrange(20_000)
                    cursor.execute("INSERT INTO d.t (v) VALUES (%s)", (b"v" * size,))
                cursor.execute("SET gtid_next = 'AUTOMATIC'")
                if choice > 0.97:
                    time.sleep(0.3)
            # Later than any time that the tests draw near a commit's time.
            time.sleep(0.1)
            cursor.execute("INSERT INTO d.t (v) VALUES ('last')")
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_any_time_means_the_commits_before_the_first_later_one(busy: MysqlServer, seed: int) -> None:
    commits = commits_of(busy)
    assert len(commits) > 300
    dice = random.Random(seed)
    for _ in range(6):
        index = dice.randrange(3, len(commits) - 1)
        when = commits[index][1] + dice.choice([0, 0, -1, 1, dice.randrange(-5000, 5000)])
        found = prefix_at(settings(busy), at(when))
        assert found.position == until(commits, when)
        # Final, and the place is where the first later one begins.
        later = next(commit for commit in commits if commit[1] > when)
        assert found.following == at(later[1])
        events = busy.query(f"SHOW BINLOG EVENTS IN '{found.place.file}' FROM {found.place.position} LIMIT 1")
        assert later[0].replace(" ", "") in str(events[0][5]).replace(" ", "")


def test_a_time_that_the_log_has_not_passed_yet_is_not_final(busy: MysqlServer) -> None:
    found = prefix_at(settings(busy), datetime.now(UTC) + timedelta(hours=1))
    assert found.following is None
    assert str(found.position) == str(executed(busy))


def test_a_time_before_the_log_is_refused_and_the_earliest_is_named(busy: MysqlServer) -> None:
    commits = commits_of(busy)
    with pytest.raises(LogGone, match="the first commit in the log was at") as caught:
        prefix_at(settings(busy), at(commits[0][1]) - timedelta(days=1))
    earliest = re.search(r"request (\S+) or later", caught.value.hint)
    assert earliest is not None
    found = prefix_at(settings(busy), datetime.fromisoformat(earliest[1]))
    assert found.position == until(commits, round(datetime.fromisoformat(earliest[1]).timestamp() * 1_000_000))


@pytest.mark.parametrize("seed", seeds(0, 1))
def test_a_set_is_a_position_only_if_it_is_a_prefix(busy: MysqlServer, seed: int) -> None:
    commits = commits_of(busy)
    dice = random.Random(seed)
    for _ in range(3):
        length = dice.randrange(2, len(commits) - 1)
        prefix = GtidSet.parse(",".join(gtid for gtid, _ in commits[:length]))
        found = prefix_of(settings(busy), prefix)
        assert found.position == prefix
        assert found.following == at(commits[length][1])
        hole = GtidSet.parse(commits[dice.randrange(length - 1)][0])
        with pytest.raises(SourceReplaced, match="never had exactly this value"):
            prefix_of(settings(busy), prefix - hole)
        with pytest.raises(SourceReplaced, match="are not in the log"):
            prefix_of(settings(busy), prefix | GtidSet.parse("99999999-2222-3333-4444-555555555555:1"))


def test_all_that_was_executed_is_a_prefix(busy: MysqlServer) -> None:
    found = prefix_of(settings(busy), executed(busy))
    assert found.following is None
    assert str(found.place).partition("@")[0] == ":".join(map(str, busy.query("SHOW BINARY LOG STATUS")[0][:2]))


@pytest.mark.slow
def test_what_was_purged_is_part_of_every_prefix_and_is_not_looked_for(mysql_factory: MysqlFactory) -> None:
    server = mysql_factory({"binlog_checksum": "NONE"})
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    early = executed(server)
    for number in range(30):
        server.query(f"INSERT INTO d.t VALUES ({number})")
        if number % 10 == 9:
            server.query("FLUSH BINARY LOGS")
            time.sleep(1.1)
    commits = commits_of(server)
    files = [str(row[0]) for row in server.query("SHOW BINARY LOGS")]
    server.purge_log(files[2])
    when = commits[-3][1]
    assert prefix_at(settings(server), at(when)).position == until(commits, when)
    with pytest.raises(LogGone, match="begins after the position"):
        prefix_of(settings(server), early)


def rotate(server: MysqlServer, head: int) -> None:
    """Begin a log file with another time in its head."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET timestamp = %s", (head,))
        cursor.execute("FLUSH BINARY LOGS")


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-2, 2])
def test_the_time_in_the_head_of_a_file_is_only_what_a_session_took_for_the_present(
    mysql_factory: MysqlFactory, hours: int
) -> None:
    server = mysql_factory({})
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    for number in range(12):
        server.query(f"INSERT INTO d.t VALUES ({number})")
        if number % 3 == 2:
            rotate(server, int(time.time()) + hours * 3600)
    commits = commits_of(server)
    for _, when in commits[:-1]:
        assert prefix_at(settings(server), at(when)).position == until(commits, when)
    files = [str(row[0]) for row in server.query("SHOW BINARY LOGS")]
    server.purge_log(files[2])
    # The purged part is later than this, whatever the head of the first file says.
    with pytest.raises(LogGone, match="the first commit in the log was at"):
        prefix_at(settings(server), at(commits[4][1]))
    # When the purged transactions were committed is unknown.
    server.query("FLUSH BINARY LOGS")
    server.purge_log()
    with pytest.raises(LogGone, match="the log holds no transaction"):
        prefix_at(settings(server), datetime.now(UTC))


@pytest.mark.long
def test_on_a_lagging_replica_files_begin_at_the_time_of_the_source(mysql_factory: MysqlFactory) -> None:
    source, replica = mysql_factory({}), mysql_factory({"max_binlog_size": "4096"})
    source.query("CREATE DATABASE d")
    source.query("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(2000))")
    for number in range(8):
        source.query("INSERT INTO d.t VALUES (%s, REPEAT('v', 1500))", (number,))
    time.sleep(4)
    replica.query(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = 'root', "
        "SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 1",
        (source.host, source.port),
    )
    replica.query("START REPLICA")
    while not executed(source) <= executed(replica):
        time.sleep(0.1)
    replica.query("CREATE DATABASE later")
    commits = commits_of(replica)
    assert len(replica.query("SHOW BINARY LOGS")) > 2
    for _, when in commits[:-1]:
        assert prefix_at(settings(replica), at(when)).position == until(commits, when)


@pytest.mark.slow
def test_files_from_before_gtids_do_not_prevent_a_later_time(mysql_factory: MysqlFactory) -> None:
    server = mysql_factory({"gtid_mode": "OFF"})
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    for number in range(4):
        server.query("FLUSH BINARY LOGS")
        server.query(f"INSERT INTO d.t VALUES ({number})")
    with pytest.raises(UnknownEvent, match="a transaction has no GTID"):
        prefix_at(settings(server), datetime.now(UTC))
    for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
        server.query(f"SET GLOBAL gtid_mode = {mode}")
    server.query("INSERT INTO d.t VALUES (10)")
    time.sleep(2.5)
    wanted = executed(server)
    when = datetime.now(UTC)
    server.query("INSERT INTO d.t VALUES (11)")
    assert prefix_at(settings(server), when).position == wanted


def test_a_file_that_was_purged_just_now_is_reported_as_purged(mysql: MysqlServer) -> None:
    with session(settings(mysql)) as connection, pytest.raises(LogGone, match="was purged just now"):
        previous_gtids(connection, "binlog.999999")
