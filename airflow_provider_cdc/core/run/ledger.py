"""The ledger of a run: its decisions, in one order.

Each entry is a file in the run's folder that only one writer can create. The name of an entry contains the digest of
the entry before it: ``ledger/000007-<digest of entry 6>.json``. So a reader finds all entries by following the names.
Two attempts cannot record different histories. An entry that an attempt writes after the run was removed belongs to no
history, because a removal deletes the first entry first.

An entry rests on all entries before it. An attempt whose entry was not the first reads the ledger again, and decides
again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_cdc.core.options.run import OFF
from airflow_provider_cdc.core.positions.facts import Facts, Reached
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import FORMAT, Manifest
from airflow_provider_cdc.core.run.results import (
    CONSOLIDATE,
    EXTRACT_DELTA,
    SNAPSHOT,
    ConsolidateResult,
    DeltaResult,
    SnapshotResult,
    StepResult,
)
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ManifestError

# The chain of pieces of the log that a run has spooled, and what they mean for the checks of the source.
#
# A piece covers one stretch of the log since one start of the run. The pieces join: each piece begins where the
# previous piece ends. A *link* is the entry of one piece in the ledger of the run (`core.run.ledger.PieceTaken`). So
# each stretch has one piece, whatever the number of attempts. The number of a link is its place in the chain.


SPOOL = "delta/spool"


@dataclass(frozen=True)
class Link:
    """The record of one piece.

    ``start`` and ``end`` are places in the log; ``start`` of the first piece is empty. ``upper`` is a bound, as text,
    on all transactions before ``end``. ``incarnation`` is the server's incarnation when ``end`` was noted, and
    ``restarts`` counts how often it had changed since the run began. ``next_segment`` is the number of the next
    segment. ``record`` names the record with the files of the piece. ``token`` identifies the attempt. ``known`` is
    what the source must know about the tables when it no longer has the log before ``end`` (`Source.note_tables`).
    ``manifest`` is the number of the manifest that has the columns of the tables in the piece.
    """

    number: int
    token: str
    start: LogEnd
    end: LogEnd
    upper: str
    incarnation: str
    restarts: int
    next_segment: int
    record: str
    known: str = ""
    manifest: int = 1


def spooling_identity(identity: Facts, last: Link | None, option: str) -> Facts:
    """Return the identity that the checks of the source expect. It allows the source to lack the log before the end of
    the recorded chain.

    :param last: the last piece. None: no piece is recorded.
    :param option: the option ``spool``.
    """
    if option == OFF:
        return identity
    return identity.spooling(None) if last is None else reaching(identity, last)


def reaching(identity: Facts, link: Link) -> Facts:
    """Return the identity that allows the source to lack the log before the end of ``link``."""
    return identity.spooling(Reached(link.end, link.upper, link.incarnation, link.restarts, link.known))


FOLDER = "ledger"
FIRST = f"{FOLDER}/000001-begin.json"
"""The first entry. It exists if and only if a run has begun and was not removed."""

_BEGIN = "begin"
_READERS = 8
_FEW = 8
"""The number of entries that are read one by one. Most runs have fewer."""


@dataclass(frozen=True)
class Begun:
    """The run begins, or begins anew: everything earlier is void. There is no commit yet."""

    manifest: Manifest


@dataclass(frozen=True)
class Moved:
    """The run moves to a later position, with another manifest. The results of the steps so far are void. ``pieces``
    has, by start, the last piece of the log up to this position."""

    manifest: Manifest
    pieces: dict[str, Link] = field(default_factory=dict)


@dataclass(frozen=True)
class PieceTaken:
    """A piece of the log was read. From now on, the source may remove this log.

    ``start`` is the start whose log it is (`Manifest.all_starts`). The pieces of a start join, so each stretch of the
    log has one piece.
    """

    start: str
    piece: Link


@dataclass(frozen=True)
class ReadsEnded:
    """The snapshot step has ended."""

    result: SnapshotResult


@dataclass(frozen=True)
class Extracted:
    """The extract_delta step has ended."""

    result: DeltaResult


@dataclass(frozen=True)
class FilesCommitted:
    """The decision about which files are published. ``record`` names the record with these files, and ``token``
    identifies the attempt that made them. The run will be published in any case."""

    record: str
    token: str


@dataclass(frozen=True)
class CopiesPublished:
    """The consolidate step has ended: the copies are published."""

    result: ConsolidateResult


@dataclass(frozen=True)
class Ended:
    """The run was stopped, or is about to be removed: nothing of it is published, unless it begins anew."""

    why: str


Entry = Begun | Moved | PieceTaken | ReadsEnded | Extracted | FilesCommitted | CopiesPublished | Ended
_KINDS: dict[str, type[Entry]] = {
    kind.__name__: kind
    for kind in (Begun, Moved, PieceTaken, ReadsEnded, Extracted, FilesCommitted, CopiesPublished, Ended)
}
_decoded: dict[str, Entry] = {}
"""The entries that this process decoded last, by their digests."""
_digests: dict[str, tuple[Mapping[str, Any], str]] = {}
"""The entries whose digests this process computed last, by their tokens."""


@dataclass(frozen=True)
class State:
    """What the entries of a ledger mean together.

    ``chain`` has the digests of all entries, in their order. ``begun`` is the digest of the last entry `Begun`.
    ``digest`` is the digest of the entry with the present ``manifest``; ``earlier`` are the manifests before it.
    ``inputs`` are the digests of the entries on which the work of the next step rests: the one with the manifest, and
    those of the finished ``steps``. ``pieces`` has the pieces of the log by their start, and ``before`` the number of
    those that are before the position of the run. ``position`` is the position at which the tables of the run are
    exact; None until the reads fix it. An empty text is a position, too.
    """

    chain: tuple[str, ...] = ()
    begun: str = ""
    digest: str = ""
    manifest: Manifest | None = None
    earlier: tuple[Manifest, ...] = ()
    pieces: Mapping[str, tuple[Link, ...]] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, StepResult] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    position: str | None = None
    commit: FilesCommitted | None = None
    ended: Ended | None = None

    def permits(self, entry: Entry) -> bool:
        """Return whether ``entry`` may follow."""
        if self.commit is not None:
            return isinstance(entry, CopiesPublished) and CONSOLIDATE not in self.steps
        if self.manifest is None or self.ended is not None:
            return isinstance(entry, Begun)
        match entry:
            case PieceTaken(start, piece):
                return SNAPSHOT not in self.steps and self.spools(start) and self._joins(start, piece)
            case Moved(_, pieces):
                return all(self._joins(start, piece) for start, piece in pieces.items())
            case ReadsEnded():
                return SNAPSHOT not in self.steps
            case Extracted():
                return SNAPSHOT in self.steps and EXTRACT_DELTA not in self.steps
            case FilesCommitted():
                return EXTRACT_DELTA in self.steps
            case CopiesPublished():
                return False
        return True

    def after(self, digest: str, entry: Entry) -> State:
        """Return the state after ``entry``, which has this digest."""
        state = replace(self, chain=(*self.chain, digest))
        match entry:
            case Begun(manifest) | Moved(manifest):
                earlier = self.earlier if self.manifest is None else (*self.earlier, self.manifest)
                begun = digest if isinstance(entry, Begun) else self.begun
                position = None if manifest.at_upper else manifest.initial_position
                last = entry.pieces if isinstance(entry, Moved) else {}
                pieces = {start: self._with_piece(start, last.get(start)) for start in manifest.starts}
                return State(
                    state.chain,
                    begun,
                    digest,
                    manifest,
                    earlier,
                    pieces=pieces,
                    before={start: len(links) for start, links in pieces.items()},
                    inputs=(digest,),
                    position=position,
                )
            case PieceTaken(start, piece):
                return replace(state, pieces={**self.pieces, start: self._with_piece(start, piece)})
            case ReadsEnded(result):
                position = result.snapshot_upper if self.position is None else self.position
                return replace(state._with(SNAPSHOT, result), position=position)
            case Extracted(result):
                return state._with(EXTRACT_DELTA, result)
            case CopiesPublished(result):
                return state._with(CONSOLIDATE, result)
            case FilesCommitted():
                return replace(state, commit=entry)
            case Ended():
                return replace(state, ended=entry)

    def spools(self, start: str) -> bool:
        """Return whether pieces of the log since this start are recorded. If the run moved before the first piece, they
        are not: a piece must not have changes from both sides of the run's position."""
        assert self.manifest is not None
        return start == self.manifest.start or bool(self.pieces.get(start))

    def manifest_of(self, number: int) -> Manifest:
        """Return the manifest of the run with this number."""
        assert self.manifest is not None
        return (*self.earlier, self.manifest)[number - 1]

    def _joins(self, start: str, piece: Link) -> bool:
        before = self.pieces.get(start, ())
        return piece.number == len(before) + 1 and (not before or before[-1].end == piece.start)

    def _with_piece(self, start: str, piece: Link | None) -> tuple[Link, ...]:
        before = self.pieces.get(start, ())
        return before if piece is None else (*before, piece)

    def _with(self, task_id: str, result: StepResult) -> State:
        return replace(self, steps={**self.steps, task_id: result}, inputs=(*self.inputs, self.chain[-1]))


class Ledger:
    """The ledger of the run in ``folder``. Entries that were read once are not read again, except the first one."""

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self._known = State()

    def state(self) -> State:
        """Return what all entries mean together. The state of a run that has not begun is empty.

        :raises ManifestError: an entry is damaged, or this version cannot read it.
        """
        # The first entry shows whether the run was removed meanwhile, or has begun again after that.
        first = self._read(FIRST)
        if first is None:
            return State()
        digest, state = _digest_of(first), self._known
        listed: dict[str, Any] = {}
        if state.chain[:1] != (digest,):
            state = self._after(State(), FIRST, first)
        while (data := listed.get(name := _name_after(state)) or self._read(name)) is not None:
            state = self._after(state, name, data)
            if len(state.chain) == _FEW:
                listed = self._listed()
        self._known = state
        return state

    def append(self, state: State, entry: Entry) -> State | None:
        """Record ``entry`` after ``state``, and return the present state. None: the entry does not count. It may not
        follow, another entry was first, or the run was removed meanwhile.

        :raises CdcError: it is unknown whether the entry was recorded, because the store failed.
        """
        if not state.permits(entry):
            return None
        # The token makes each entry unique, so an entry never continues the history of a removed run.
        data = {"kind": type(entry).__name__, "token": uuid.uuid4().hex, "entry": records.encode(entry)}
        self._folder.create_json(_name_after(state), data)
        # Read it again, because only the entries that a reader finds from the first one on count.
        present, chain = self.state(), (*state.chain, records.digest_of(data))
        return present if present.chain[: len(chain)] == chain else None

    def _after(self, state: State, name: str, data: Mapping[str, Any]) -> State:
        digest = _digest_of(data)
        # A process opens the ledger of its run several times, and the manifest of hundreds of tables is large.
        if (entry := _decoded.get(digest)) is None:
            entry = self._decode(name, data)
            if len(_decoded) >= _FEW:
                _decoded.clear()
            _decoded[digest] = entry
        if not state.permits(entry):
            raise ManifestError(
                f"the entry {type(entry).__name__} cannot follow the entries before it",
                where=self._folder.uri_of(name),
                hint=records.HINT,
            )
        return state.after(digest, entry)

    def _decode(self, name: str, data: Mapping[str, Any]) -> Entry:
        where = self._folder.uri_of(name)
        content, kind = data.get("entry"), _KINDS.get(str(data.get("kind")))
        if kind is None or not isinstance(content, dict):
            raise ManifestError(
                "the entry is damaged, or of a kind that this version does not know",
                where=where,
                hint=records.OTHER_VERSION,
            )
        manifest = content.get("manifest") if kind in (Begun, Moved) else None
        if isinstance(manifest, dict) and (found := manifest.get("format")) != FORMAT:
            raise ManifestError(
                f"the manifest has format {found!r}; this version reads {FORMAT}",
                where=where,
                hint=records.OTHER_VERSION,
            )
        return records.decode(kind, content, where)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            data = self._folder.read_json(name)
        except FileNotFoundError:
            return None
        if not isinstance(data, dict):
            raise ManifestError("the entry is damaged", where=self._folder.uri_of(name), hint=records.HINT)
        return data

    def _listed(self) -> dict[str, Any]:
        """Return the data of the other entries that the store lists, by name. They are read in parallel, because a long
        run has many entries. The store may not list new entries yet."""
        names = [name for name in self._folder.files(FOLDER) if name.endswith(".json")][_FEW:]
        with ThreadPoolExecutor(_READERS) as readers:
            return dict(zip(names, readers.map(self._read, names), strict=True))


def _digest_of(data: Mapping[str, Any]) -> str:
    """Return the digest of an entry. Each state begins with the digest of the first entry, which has the manifest."""
    token = str(data.get("token"))
    known, digest = _digests.get(token, (None, ""))
    if known != data:
        digest = records.digest_of(data)
        if len(_digests) >= _FEW:
            _digests.clear()
        _digests[token] = data, digest
    return digest


def _name_after(state: State) -> str:
    return f"{FOLDER}/{len(state.chain) + 1:06}-{state.chain[-1] if state.chain else _BEGIN}.json"
