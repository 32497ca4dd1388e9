"""The arrays with which Python and the kernel of ``walk.py`` communicate: what their words mean."""

from __future__ import annotations

# Return codes of `walk`.
MORE, DONE, ODD, NO_ROOM = 0, 1, 2, 3
"""All messages are processed; the current transaction is beyond the requested end; the caller must handle a message;
``state[WANTED]`` more words are needed."""
SHAPE, NOT_WHOLE, NO_ROOM_FOR_CHANGES = 4, 5, 6
"""A counted change has another number of columns than the table, or no value for its key; it does not have the whole
old row; ``state[WANTED]`` more words are needed for a single change."""
BAD_LENGTH, BAD_TUPLE, BAD_COMMIT, OUT_OF_PLACE, NO_RELATION = 11, 12, 13, 14, 15
"""Damage of one message, or in the order of several messages."""

# `state`, int64.
AT = 0
"""Number of the next message in the batch."""
INITIAL = 1
STOP = 2
"""Transactions count if their commit is at or after INITIAL and before STOP."""
PHASE = 3
COMMIT = 4
"""Position of the commit record of the current transaction, or of the last one."""
XID = 5
COUNTS = 6
"""1 if the current transaction is after the initial position."""
ORDER = 7
"""Number of the last row change; grows with each change."""
TRANSACTIONS = 8
IMAGES = 9
WANTED = 10
COMMITTED = 11
"""Commit time of the current transaction, in microseconds since 1970."""
MARKED = 12
"""Messages of applications at this position or later are left to the caller."""
STATE_WORDS = 13

# `state[PHASE]`
BETWEEN, OPEN = 0, 1

# `relations`: an open-addressing hash table of the relations that the log has described. Each entry has two words: the
# OID plus one (0: free), and the index of the tracked table, or UNTRACKED. The upper half of the index is 0, or 1 plus
# the place in ``orders`` where the relation's column order begins: a partition may have another column order than its
# root, and some columns of a table may not be read. ``orders`` has the number of the relation's columns and then, for
# each column of the table, its place in the relation or `NOT_READ`.
UNTRACKED = -1
NOT_READ = -1

# `tables`: `TABLE_WORDS` words for each tracked table.
TABLE_WORDS = 6
COLUMNS, KEYS_AT, KEYS, UPPER, KEYS_ONLY, FORWARD = 0, 1, 2, 3, 4, 5
"""Number of columns; first key column in ``key_columns``; number of key columns; position before which commits must
begin to count; 1 if only the keys of changes are read; 1 if the rows after changes are also needed, 2 if each single
change is needed, too."""
