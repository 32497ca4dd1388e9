"""Layout of the arrays that Python shares with the kernel of ``walk.py``."""

from __future__ import annotations

# Return codes of `walk`.
MORE, DONE, ODD, NO_ROOM = 0, 1, 2, 3
"""In this order: more bytes are needed; the requested end is reached; the caller must handle an event;
``state[WANTED]`` words of room are needed."""
SHAPE, NOT_WHOLE, CASCADES, NO_ROOM_FOR_CHANGES, DIFFERENCES, OTHERS_CASCADES = 4, 5, 6, 7, 8, 9
"""In this order: rows that count do not have the shape of their table; row images lack columns; a row of a parent was
deleted or its key was changed; ``state[WANTED]`` words of room for single changes are needed; rows may contain
differences instead of JSON documents; the effects of foreign keys on these rows were not logged, although the server
normally logs such effects."""
WRITTEN_HERE = 10
"""A session of the replica whose log is read committed the transaction."""
BAD_CHECKSUM, BAD_LENGTH, BAD_POSITION, BAD_GTID, BAD_ROWS, OUT_OF_PLACE = 11, 12, 13, 14, 15, 16
"""Kinds of damage to an event, or to the order of events."""

# `state`, int64.
AT = 0
"""Offset of the next event in the buffer."""
POSITION = 1
"""Position of the next event in the file; -1 inside a compressed transaction, where events have no position."""
STOP = 2
"""Position in the file to stop at; -1: none."""
CHECKSUM = 3
"""Size of the checksum after each event: 4 or 0."""
PHASE = 4
XA = 5
"""Number of the XA transaction that the rows belong to, or -1."""
IGNORED = 6
"""1 if the initial position contains the transaction. Its rows are then ignored, unless ``XA`` is set."""
SOURCE = 7
NUMBER = 8
"""The GTID of the transaction: the index of its source in ``tsids`` (-1: absent), and its number."""
SERIAL = 9
"""Incremented for each transaction."""
ROW = 10
"""Offset of the next row in the event at ``AT``; 0: no row was processed yet."""
ORDER = 11
"""Incremented for each row change."""
TRANSACTIONS = 12
IMAGES = 13
TRACKED = 14
"""Number of row changes of this transaction that were added to the net change."""
WANTED = 15
CHANGES = 16
"""1 if single changes of any table are wanted."""
COMMITTED = 17
"""Commit time of the transaction, in microseconds since 1970; -1: not in the log. Set only if ``CHANGES`` is 1."""
ONLY_LOOKS = 18
"""1 if no rows are added to the net change. In this case, the later read of the rows verifies the checksums of row
events."""
RELIES = 19
"""1 if the copy of at least one table is exact only with the effects of foreign keys in the log."""
REPLICA = 20
"""The ``server_id`` of the replica whose log is read; 0: the log is that of the source. Commit times are then those of
the first commit, on the source."""
STATE_WORDS = 21

# `state[PHASE]`
BETWEEN, BEGUN, OPEN, XA_OPEN = 0, 1, 2, 3
"""In this order: between transactions; after the GTID event; after BEGIN; after XA START."""

# `maps`: an open-addressing hash table of the TABLE_MAP events seen, with `MAP_WORDS` words per entry.
MAP_WORDS = 8
MAP_NUMBER, MAP_TABLE, MAP_AT, MAP_BYTES, MAP_SERIAL, MAP_PARENT = 0, 1, 2, 3, 4, 5
"""In this order: table number plus one (0: free); index of the tracked table, or one of the constants below; offset of
the body in ``bodies``; size of the body; serial number of the transaction that used the entry last; index of the parent
(``cascades``), or one of the constants below."""
UNTRACKED, OTHER_SHAPE = -1, -2

# `tables`: `TABLE_WORDS` words per tracked table, or per parent. The key of a parent is its referenced columns.
TABLE_WORDS = 8
COLUMNS_AT, COLUMNS, KEYS_AT, KEYS, UPPER, JSON_COLUMNS, FORWARD, LOOKED_AT = 0, 1, 2, 3, 4, 5, 6, 7
"""In this order: index of the first column in ``prefixes``, ``widths`` and ``slots``; number of columns; index of the
first key column in ``key_prefixes``; number of key columns; index of the set of transactions that count, or 0 (all
transactions count); number of JSON columns; 1 if rows after changes are wanted, 2 if each single change is wanted, too;
1 if the kernel only checks whether rows are readable, 2 if it found an unreadable row."""
