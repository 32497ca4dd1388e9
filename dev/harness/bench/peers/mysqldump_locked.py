"""``mysqldump --lock-tables``: exact, because nobody can write until it is done."""

from __future__ import annotations

from harness.bench.contender import Address, Work
from harness.bench.peers import mysqldump


def prepare(address: Address) -> Work:
    return mysqldump.prepare(address, "--lock-tables")
