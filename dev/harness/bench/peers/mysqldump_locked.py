"""``mysqldump --lock-tables``: exact, because no session can write until its end."""

from __future__ import annotations

from harness.bench.contender import Address, Work
from harness.bench.peers import mysqldump


def prepare(address: Address) -> Work:
    return mysqldump.prepare(address, "--lock-tables")
