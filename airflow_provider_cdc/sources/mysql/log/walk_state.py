"""The arrays through which Python and the kernel of ``walk.py`` talk: what their words mean."""

from __future__ import annotations

# What `walk` returns.
MORE, DONE, ODD, NO_ROOM = 0, 1, 2, 3
"""More bytes are needed; the end that was asked for is reached; an event for the caller; ``state[WANTED]`` words are
needed."""
SHAPE, NOT_WHOLE, CASCADES, NO_ROOM_FOR_CHANGES, DIFFERENCES, OTHERS_CASCADES = 4, 5, 6, 7, 8, 9
"""Rows that count have another shape than the table's; or they have images without all columns; or a row of a parent
was deleted or got another key; ``state[WANTED]`` words are needed for a single change; or rows after a change may have
differences in place of JSON documents; or rows were changed in a way that leaves unlogged what foreign keys did then,
by a server that ordinarily logs it."""
BAD_CHECKSUM, BAD_LENGTH, BAD_POSITION, BAD_GTID, BAD_ROWS, OUT_OF_PLACE = 11, 12, 13, 14, 15, 16
"""Damage: of one event, or in the order of several."""

# `state`, int64.
AT = 0
"""Where the next event begins in the buffer."""
POSITION = 1
"""Where it begins in the file; -1 inside a compressed transaction, whose events have no place of their own."""
STOP = 2
"""Where in the file to end; -1: at no certain place."""
CHECKSUM = 3
"""Bytes of checksum behind each event: 4 or 0."""
PHASE = 4
XA = 5
"""The number of the prepared transaction that the rows belong to, or -1."""
IGNORED = 6
"""1 if the transaction is in the initial position: its rows do not count (unless ``XA``)."""
SOURCE = 7
NUMBER = 8
"""The transaction's GTID: its source's place in ``tsids`` (-1: not there) and its number."""
SERIAL = 9
"""Grows with each transaction."""
ROW = 10
"""How far into the event at ``AT`` its next row is; 0: it is not begun."""
ORDER = 11
"""Grows with each row change."""
TRANSACTIONS = 12
IMAGES = 13
TRACKED = 14
"""Row changes of this transaction that were netted."""
WANTED = 15
CHANGES = 16
"""1 if single changes of some table are wanted."""
COMMITTED = 17
"""Of the transaction, in microseconds since 1970; -1: the log does not say. Only if ``CHANGES``."""
ONLY_LOOKS = 18
"""1 if no rows are netted: whoever reads the rows later verifies the checksums of their events."""
RELIES = 19
"""1 if the log is expected to tell what foreign keys do to some table's rows."""
STATE_WORDS = 20

# `state[PHASE]`
BETWEEN, BEGUN, OPEN, XA_OPEN = 0, 1, 2, 3
"""Between transactions; after the GTID; after BEGIN; after XA START."""

# `maps`: an open-addressing table of the TABLE_MAP events seen, `MAP_WORDS` words each.
MAP_WORDS = 8
MAP_NUMBER, MAP_TABLE, MAP_AT, MAP_BYTES, MAP_SERIAL, MAP_PARENT = 0, 1, 2, 3, 4, 5
"""Table number plus one (0: free); index of the tracked table, or a constant below; the body in ``map_bytes``; last
use; index of the parent (``cascades``), or a constant below."""
UNTRACKED, OTHER_SHAPE = -1, -2

# `tables`: `TABLE_WORDS` words for each tracked table, or for each parent: the key of that is what is referenced.
TABLE_WORDS = 8
COLUMNS_AT, COLUMNS, KEYS_AT, KEYS, UPPER, JSON_COLUMNS, FORWARD, LOOKED_AT = 0, 1, 2, 3, 4, 5, 6, 7
"""First column in ``prefixes``, ``widths``, ``slots``; their number; first key column in ``key_prefixes``; their
number; number of the set that a transaction must be in to count, or 0 (all count); columns of type JSON; whether the
rows after the changes are wanted, too: 1, and 2 if each single change is; whether its rows are only looked at, to see
if they could be read: 1, and 2 once they could not."""
