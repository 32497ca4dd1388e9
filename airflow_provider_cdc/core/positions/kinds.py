"""The kinds of sources, with the properties that can be used without a source object.

Each kind is registered here, with its positions and features, and in ``sources.api.registry``, with its classes and its
connection form. No other code outside a kind's own folder and its hook refers to a kind by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn, Position
from airflow_provider_cdc.errors import PositionError


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    ``position_key``
        the name of this kind's positions in XComs, manifests and ``_latest.json``.
    ``parse``
        parses the text of a position; raises `PositionError`.
    ``features``
        the consistencies that only some kinds have, and the features that options need (`Option.feature`).
    ``branch``
        a key in a server's identity. Positions are comparable only if their servers have the same value of this key.
        Empty: positions are always comparable.
    ``takes_over``
        whether another server counts as the same source if it has the same connection and shares a history with the
        copy's server: positions are sets of transactions.
    ``keeps_past``
        whether the source retains its past log even if no option requests this.
    """

    name: str
    title: str
    position_key: str
    parse: Callable[[str], Position]
    features: frozenset[str]
    branch: str = ""
    takes_over: bool = False
    keeps_past: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "mysql",
            "MySQL",
            "initial_gtid_set",
            GtidSet.parse,
            frozenset({"lock", "lock_through_read"}),
            takes_over=True,
            keeps_past=True,
        ),
        Kind(
            "postgres",
            "PostgreSQL",
            "initial_lsn",
            Lsn.parse,
            frozenset({"exported", "again", "slots", "standing_slot", "arrays"}),
            branch="timeline",
        ),
    )
}


@lru_cache(maxsize=32)
def parse_position(kind: str, text: str) -> Position:
    """Parse the position of a source of this kind, as text from a record.

    The results are cached, because records with large GTID sets are parsed repeatedly.

    :raises PositionError: the text is not a position, or the kind is unknown.
    """
    if kind not in KINDS:
        raise PositionError(
            f"unknown kind of source: {kind!r}", hint="install the version of this provider that wrote the record"
        )
    return KINDS[kind].parse(text)


def kinds_with(feature: str) -> tuple[Kind, ...]:
    """Return the kinds that have ``feature``; empty: all kinds."""
    return tuple(kind for kind in KINDS.values() if not feature or feature in kind.features)


def has(kind: str, feature: str) -> bool:
    """Return whether sources of the kind named ``kind`` have ``feature``. All kinds have the empty feature."""
    return any(one.name == kind for one in kinds_with(feature))


def only(feature: str) -> str:
    """Return the titles of the kinds that have ``feature``, such as "PostgreSQL"; empty: all kinds have it."""
    having = kinds_with(feature)
    return "" if len(having) == len(KINDS) else " and ".join(kind.title for kind in having)
