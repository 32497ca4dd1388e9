"""MySQL positions: a set of global transaction identifiers (GTIDs) and its algebra.

A GTID is `uuid:gno`, or `uuid:tag:gno` since MySQL 8.3. A server's history is a set of GTIDs, which may have gaps. So
if a number is in a `GtidSet`, smaller numbers may be missing in the set.

The text form follows the grammar that MySQL 9.7 reads
(https://dev.mysql.com/doc/refman/9.7/en/replication-gtids-concepts.html) with one exception: see `GtidSet.parse`. The
binary form follows `Gtid_set::encode` of the server (sql/rpl_gtid_set.cc). It is the content of a PREVIOUS_GTIDS event
and of the command COM_BINLOG_DUMP_GTID.
"""

from __future__ import annotations

import operator
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import PositionError

GNO_END = 2**63 - 1
"""The largest transaction number plus 1, as in the server (`GNO_END` in sql/rpl_gtid.h)."""

MAX_TAG_LENGTH = 32

_Tsid = tuple[bytes, str]
_Bounds = tuple[int, ...]

_HEX = "[0-9a-fA-F]"
_DASHED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_UUID = re.compile(rf"(?:{_DASHED}|\{{{_DASHED}\}}|{_HEX}{{32}})")
# One item after a colon. The pattern accepts tags of any length, so the error message can say that a tag is too long.
_ITEM = re.compile(
    r":\s*(?:(?P<tag>[a-zA-Z_][a-zA-Z0-9_]*)|(?P<first>[0-9]+)(?:\s*-\s*(?P<last>[0-9]+))?)\s*", re.ASCII
)
_TAG = re.compile(rf"(?:[a-zA-Z_][a-zA-Z0-9_]{{0,{MAX_TAG_LENGTH - 1}}})?")
_BETWEEN_SETS = re.compile(r"[\s,]*", re.ASCII)
_SPACE = re.compile(r"\s*", re.ASCII)

_U64 = struct.Struct("<Q")
_UNTAGGED, _TAGGED = 0, 1


@dataclass(frozen=True, slots=True)
class Gtid:
    """One transaction. `uuid` has 16 bytes, `tag` is in lower case ("": no tag), and `gno` is from 1 to `GNO_END` - 1.

    Raises `PositionError` for values that no server assigns.
    """

    uuid: bytes
    tag: str
    gno: int

    def __post_init__(self) -> None:
        if (self.uuid, self.tag) != _tsid(self.uuid, self.tag) or not 1 <= self.gno < GNO_END:
            raise PositionError(
                f"no GTID has the uuid {self.uuid!r}, tag {self.tag!r} and number {self.gno}",
                hint=f"give 16 bytes, a tag in lower case or '', and a number from 1 to {GNO_END - 1}",
            )

    def __str__(self) -> str:
        return ":".join(filter(None, (_uuid_text(self.uuid), self.tag, str(self.gno))))


@dataclass(frozen=True, slots=True, repr=False)
class GtidSet(Position):
    """An immutable set of GTIDs. `GtidSet()` returns the empty set. Create other sets with `parse`, `decode` or `of`.

    The transaction numbers of each (uuid, tag) are stored as *bounds*: a strictly increasing tuple of even length,
    `start, end, start, end, ...`. Every end is exclusive. No interval is empty, and no two intervals are adjacent. So a
    set has only one representation. A number is in the set if the count of the bounds at or below it is odd. Entries
    are sorted by uuid bytes, then by tag, which is the order in which the server prints them.

    `a | b`, `a - b`, `a & b` and `a <= b` (subset) take time linear in the number of intervals; `gtid in a` takes
    logarithmic time. Sets are only partially ordered, so there is no operator `<`.
    """

    _entries: tuple[tuple[bytes, str, _Bounds], ...] = ()

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parse a set as a user or a server writes it.

        UUIDs may be in upper or lower case, without dashes, or in braces. White space is allowed around every `:` and
        `,` and around the `-` of an interval. Intervals may overlap, and may be in any order. As on the server, an
        interval that ends before it starts is empty.

        A number with leading zeros is rejected, although servers accept it, because versions disagree on its value:
        MySQL 8 reads 010 as an octal number, and MySQL 9.7 reads it as a decimal number.

        Raises `PositionError`, which names the offset, if `text` is not a GTID set.
        """
        intervals_by_tsid: dict[_Tsid, list[tuple[int, int]]] = {}
        at = _skip(_BETWEEN_SETS, text, 0)
        while at < len(text):
            uuid = _UUID.match(text, at)
            if uuid is None:
                raise _bad_text(text, at, "expected a UUID")
            tsid = _uuid_from_text(uuid[0]), ""
            at = _skip(_SPACE, text, uuid.end())
            while text.startswith(":", at):
                item = _ITEM.match(text, at)
                if item is None:
                    raise _bad_text(text, at + 1, "expected a transaction number or a tag")
                if (tag := item["tag"]) is not None:
                    if len(tag) > MAX_TAG_LENGTH:
                        raise _bad_text(text, item.start("tag"), f"a tag has at most {MAX_TAG_LENGTH} characters")
                    tsid = tsid[0], tag.lower()
                else:
                    first = _gno(text, item, "first")
                    last = first if item["last"] is None else _gno(text, item, "last")
                    intervals_by_tsid.setdefault(tsid, []).append((first, last + 1))
                at = item.end()
            if at < len(text) and text[at] != ",":
                raise _bad_text(text, at, "expected ':', ',' or the end")
            at = _skip(_BETWEEN_SETS, text, at)
        return cls._from_bounds((tsid, _bounds_of(intervals)) for tsid, intervals in intervals_by_tsid.items())

    @classmethod
    def of(cls, gtids: Iterable[Gtid]) -> GtidSet:
        """Return the set of these transactions."""
        intervals_by_tsid: dict[_Tsid, list[tuple[int, int]]] = {}
        for gtid in gtids:
            intervals_by_tsid.setdefault((gtid.uuid, gtid.tag), []).append((gtid.gno, gtid.gno + 1))
        return cls._from_bounds((tsid, _bounds_of(intervals)) for tsid, intervals in intervals_by_tsid.items())

    @classmethod
    def decode(cls, data: bytes) -> GtidSet:
        """Decode the body of a PREVIOUS_GTIDS event, without event header and checksum.

        All integers are little-endian. Byte 7 is the format. In format 0, bytes 0 to 6 are the number of entries. In
        format 1 (with tags, since MySQL 8.3), bytes 1 to 6 are the number of entries, and byte 0 is 1. An entry begins
        with the 16 bytes of the UUID. In format 1, the tag follows: a byte with twice the length of the tag, and the
        characters of the tag. Then follow the number of intervals (u64) and, for each interval, the start (u64) and the
        exclusive end (u64).

        Raises `PositionError` if `data` has any other form, for example a format of a later server version.
        """
        try:
            return cls._from_bounds(_decode_entries(data))
        except struct.error:
            raise _bad_bytes(data, len(data), "the data ends early") from None

    @classmethod
    def _from_bounds(cls, found: Iterable[tuple[_Tsid, _Bounds]]) -> GtidSet:
        return cls(tuple((*tsid, bounds) for tsid, bounds in sorted(found) if bounds))

    def encode(self) -> bytes:
        """Encode the set as the server does. `decode` reads these bytes, and the command COM_BINLOG_DUMP_GTID contains
        them.

        If no transaction in the set has a tag, the format is 0, which servers before MySQL 8.3 can read.
        """
        tagged = any(tag for _, tag, _ in self._entries)
        count = len(self._entries)
        parts = [_U64.pack(_TAGGED << 56 | count << 8 | _TAGGED if tagged else count)]
        for uuid, tag, bounds in self._entries:
            parts.append(uuid)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode("ascii"))
            parts.append(struct.pack(f"<{1 + len(bounds)}Q", len(bounds) // 2, *bounds))
        return b"".join(parts)

    def contains(self, uuid: bytes | str, tag: str, gno: int) -> bool:
        """Return whether the transaction is in the set; `tag` is "" for a transaction without a tag."""
        return bisect_right(self._bounds_at(uuid, tag), gno) % 2 == 1

    def __contains__(self, gtid: Gtid) -> bool:
        return self.contains(gtid.uuid, gtid.tag, gtid.gno)

    def items(self) -> Iterator[tuple[bytes, str, tuple[tuple[int, int], ...]]]:
        """Yield (uuid, tag, intervals) in canonical order. An interval is (start, exclusive end).

        This is not `__iter__`, because `list(s)` would first allocate memory for `len(s)` transactions.
        """
        return ((uuid, tag, _intervals(bounds)) for uuid, tag, bounds in self._entries)

    def __or__(self, other: GtidSet) -> GtidSet:
        return self._combine(other, operator.or_)

    def __and__(self, other: GtidSet) -> GtidSet:
        return self._combine(other, operator.and_)

    def __sub__(self, other: GtidSet) -> GtidSet:
        return self._combine(other, operator.gt)

    def __le__(self, other: GtidSet) -> bool:
        return not self - other if isinstance(other, GtidSet) else NotImplemented

    def shortfall(self, wanted: GtidSet) -> str:
        """Describe the transactions of ``wanted`` that this set lacks; empty: none."""
        missing = wanted - self
        return f"it lacks {format_count(len(missing), 'transaction')}: {str(missing)[:200]}" if missing else ""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        """Return the number of transactions."""
        return sum(sum(bounds[1::2]) - sum(bounds[::2]) for _, _, bounds in self._entries)

    def __str__(self) -> str:
        """Return the canonical form, which is the server's form with "," instead of ",\\n" between UUIDs."""
        return ",".join(
            ":".join([_uuid_text(uuid), *(part for _, tag, bounds in entries for part in _parts(tag, bounds))])
            for uuid, entries in groupby(self._entries, key=operator.itemgetter(0))
        )

    def __repr__(self) -> str:
        return f"GtidSet.parse({str(self)!r})"

    def _bounds_at(self, uuid: bytes | str, tag: str) -> _Bounds:
        tsid = _tsid(uuid, tag)
        # The tuple (uuid, tag) sorts just before the entry that starts with this tuple.
        at = bisect_left(self._entries, tsid)
        return self._entries[at][2] if at < len(self._entries) and self._entries[at][:2] == tsid else ()

    def _combine(self, other: GtidSet, keep: Callable[[int, int], int]) -> GtidSet:
        left_bounds = {(uuid, tag): bounds for uuid, tag, bounds in self._entries}
        right_bounds = {(uuid, tag): bounds for uuid, tag, bounds in other._entries}
        return self._from_bounds(
            (tsid, _sweep(left_bounds.get(tsid, ()), right_bounds.get(tsid, ()), keep))
            for tsid in left_bounds.keys() | right_bounds.keys()
        )


def _sweep(ours: _Bounds, theirs: _Bounds, keep: Callable[[int, int], int]) -> _Bounds:
    """Walk both tuples of bounds in order. The result contains a number if `keep(in ours, in theirs)` is 1.

    `keep(0, 0)` must be 0, because the result would otherwise be infinite.
    """
    i = j = 0
    out: list[int] = []
    while i < len(ours) or j < len(theirs):
        bound = min(ours[i] if i < len(ours) else GNO_END, theirs[j] if j < len(theirs) else GNO_END)
        i += i < len(ours) and ours[i] == bound
        j += j < len(theirs) and theirs[j] == bound
        if keep(i % 2, j % 2) != len(out) % 2:
            out.append(bound)
    return tuple(out)


def _bounds_of(intervals: list[tuple[int, int]]) -> _Bounds:
    bounds: list[int] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if bounds and start <= bounds[-1]:
            bounds[-1] = max(bounds[-1], end)
        else:
            bounds += start, end
    return tuple(bounds)


def _intervals(bounds: _Bounds) -> tuple[tuple[int, int], ...]:
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


def _parts(tag: str, bounds: _Bounds) -> Iterator[str]:
    if tag:
        yield tag
    for start, end in _intervals(bounds):
        yield str(start) if end == start + 1 else f"{start}-{end - 1}"


def _tsid(uuid: bytes | str, tag: str) -> _Tsid:
    if isinstance(uuid, str) and _UUID.fullmatch(uuid):
        uuid = _uuid_from_text(uuid)
    if not isinstance(uuid, bytes) or len(uuid) != 16:
        raise PositionError(f"{uuid!r} is not the UUID of a GTID", hint="give it as text or as 16 bytes")
    if not _TAG.fullmatch(tag):
        raise PositionError(
            f"{tag!r} is not the tag of a GTID",
            hint=f"give up to {MAX_TAG_LENGTH} characters (a-z, 0-9, _), not beginning with a digit, or '' for no tag",
        )
    return uuid, tag.lower()


def _uuid_from_text(text: str) -> bytes:
    return bytes.fromhex(text.strip("{}").replace("-", ""))


def _uuid_text(uuid: bytes) -> str:
    digits = uuid.hex()
    return "-".join(digits[start:end] for start, end in pairwise((0, 8, 12, 16, 20, 32)))


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _gno(text: str, item: re.Match[str], group: str) -> int:
    digits = item[group]
    if digits != "0" and digits.startswith("0"):
        raise _bad_text(text, item.start(group), "servers disagree on numbers with leading zeros: remove the zeros")
    # Check the length first, because int() raises a different error for a number with thousands of digits.
    gno = int(digits) if len(digits) <= len(str(GNO_END)) else GNO_END
    if gno >= GNO_END or (gno == 0 and group == "first"):
        raise _bad_text(text, item.start(group), f"a transaction number is from 1 to {GNO_END - 1}")
    return gno


def _bad_text(text: str, at: int, what: str) -> PositionError:
    before, after = text[max(0, at - 40) : at], text[at : at + 40]
    return PositionError(
        f"not a GTID set: {what} at offset {at}, after {before!r}"
        + (f" and before {after!r}" if after else ", where the text ends"),
        hint="write it as SELECT @@gtid_executed prints it, like 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:8:tag:1-3",
    )


def _decode_entries(data: bytes) -> Iterator[tuple[_Tsid, _Bounds]]:
    (header,) = _U64.unpack_from(data)
    form, count = header >> 56, header & (1 << 56) - 1
    if form == _TAGGED and count & 0xFF == _TAGGED:
        count >>= 8
    elif form != _UNTAGGED:
        raise _bad_bytes(data, 0, f"the first 8 bytes, 0x{header:016x}, name no known format")
    bounds_by_tsid: dict[_Tsid, _Bounds] = {}
    at = 8
    for _ in range(count):
        uuid = data[at : at + 16]
        at += 16
        tag, at = _decode_tag(data, at) if form == _TAGGED else ("", at)
        if (uuid, tag) in bounds_by_tsid:
            raise _bad_bytes(data, at, "the same UUID and tag came before")
        (n_intervals,) = _U64.unpack_from(data, at)
        at += 8
        # Check the count before the format string is built, because damaged data may contain any count.
        if n_intervals > (len(data) - at) // 16:
            raise _bad_bytes(data, at - 8, f"{n_intervals} intervals do not fit in the {len(data) - at} bytes left")
        bounds = struct.unpack_from(f"<{2 * n_intervals}Q", data, at)
        if bounds and not (bounds[0] >= 1 and bounds[-1] <= GNO_END and all(map(operator.lt, bounds, bounds[1:]))):
            raise _bad_bytes(data, at, f"the intervals are not sorted, disjoint and within 1 to {GNO_END - 1}")
        bounds_by_tsid[uuid, tag] = bounds
        at += 16 * n_intervals
    if at != len(data):
        raise _bad_bytes(data, at, f"{len(data) - at} bytes are left over (a checksum is 4: strip it first)")
    yield from bounds_by_tsid.items()


def _decode_tag(data: bytes, at: int) -> tuple[str, int]:
    # The length is encoded as a variable-length integer of the server. If the lowest bit of the first byte is 0, the
    # integer has only this byte. One byte is enough for the length of any tag.
    size = data[at] if at < len(data) else 0
    raw = data[at + 1 : at + 1 + size // 2]
    tag = raw.decode("latin-1")
    if size % 2 or len(raw) != size // 2 or not _TAG.fullmatch(tag) or tag != tag.lower():
        raise _bad_bytes(data, at, "expected a tag")
    return tag, at + 1 + len(raw)


def _bad_bytes(data: bytes, at: int, what: str) -> PositionError:
    near = data[at : at + 24].hex(" ")
    return PositionError(
        f"not an encoded GTID set: {what}, at offset {at} of {len(data)}" + (f", before {near}" if near else ""),
        hint="the log is damaged, or the server is newer than this reader. Run mysqlbinlog --verify-binlog-checksum "
        "to find out whether the log is damaged",
    )
