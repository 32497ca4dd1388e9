"""The kinds of sources, as far as this package tells them apart without a source at hand.

Each kind is registered here, with its positions and features, and in ``sources.registry``, with its classes and its
connection form. Nothing else outside a kind's own folder and its hook knows a kind by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.errors import PositionError


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    ``position_key``
        the name of its positions in XComs, manifests and ``_latest.json``.
    ``parse``
        reads the text of a position; raises `PositionError`.
    ``features``
        the consistencies that only some kinds have, and what options need (`Option.feature`).
    ``branch``
        the part of a server's identity within which positions compare; empty: they always do.
    ``takes_over``
        whether a server that has all of a copy's position, behind the same connection, continues the source of the
        copy, although it is another server.
    ``keeps_past``
        whether its log goes back without an option that asks for it.
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
            frozenset({"exported", "again", "slots", "standing_slot"}),
            branch="timeline",
        ),
    )
}


@lru_cache(maxsize=32)
def parse_position(kind: str, text: str) -> Position:
    """Read the text of a position of a source of this kind, as a record has it.

    Records of large GTID sets are asked for their position again and again.

    :raises PositionError: it is none, or the kind is not known.
    """
    if kind not in KINDS:
        raise PositionError(
            f"positions of {kind!r} sources are not known", hint="install the version of this provider that wrote them"
        )
    return KINDS[kind].parse(text)


def kinds_with(feature: str) -> tuple[Kind, ...]:
    """Return the kinds that have ``feature``; empty: all kinds."""
    return tuple(kind for kind in KINDS.values() if not feature or feature in kind.features)


def has(kind: str, feature: str) -> bool:
    """Return whether sources of the kind of this name have ``feature``, which may be empty."""
    return any(one.name == kind for one in kinds_with(feature))


def only(feature: str) -> str:
    """Return the titles of the kinds that have ``feature``, as in "PostgreSQL"; empty: all kinds have it."""
    having = kinds_with(feature)
    return "" if len(having) == len(KINDS) else " and ".join(kind.title for kind in having)
