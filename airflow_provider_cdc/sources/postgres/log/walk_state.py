"""The arrays through which Python and the kernel of ``walk.py`` talk: what their words mean."""

from __future__ import annotations

# What `walk` returns.
MORE, DONE, ODD, NO_ROOM = 0, 1, 2, 3
"""All messages are taken; the transaction at hand lies beyond the end that was asked for; a message for the caller;
``state[WANTED]`` words are needed."""
SHAPE, NOT_WHOLE, NO_ROOM_FOR_CHANGES = 4, 5, 6
"""A change that counts has another number of columns than the table, or lacks a value of its key; it has not the whole
old row; ``state[WANTED]`` words are needed for a single change."""
BAD_LENGTH, BAD_TUPLE, BAD_COMMIT, OUT_OF_PLACE, NO_RELATION = 11, 12, 13, 14, 15
"""Damage: of one message, or in the order of several."""

# `state`, int64.
AT = 0
"""The number of the next message in the batch."""
INITIAL = 1
STOP = 2
"""Transactions count whose commit lies from the one to before the other."""
PHASE = 3
COMMIT = 4
"""Where the transaction's commit record begins, or that of the last one."""
XID = 5
COUNTS = 6
"""1 if the transaction lies after the initial position."""
ORDER = 7
"""Grows with each row change."""
TRANSACTIONS = 8
IMAGES = 9
WANTED = 10
COMMITTED = 11
"""Of the transaction, in microseconds since 1970."""
MARKED = 12
"""Messages of applications that stand there or later are for the caller."""
STATE_WORDS = 13

# `state[PHASE]`
BETWEEN, OPEN = 0, 1

# `relations`: an open-addressing table of the relations that the log has described, two words each: OID plus one (0:
# free), and the index of the tracked table, or UNTRACKED. The upper half of the index is zero, or tells where in
# ``orders``, plus one, the order of the relation's columns begins: a partition may have them in another order than its
# root, and of a table some columns may not be read. ``orders`` has the number of the relation's columns, and then for
# each column of the table its place in the relation, or `NOT_READ`.
UNTRACKED = -1
NOT_READ = -1

# `tables`: `TABLE_WORDS` words for each tracked table.
TABLE_WORDS = 6
COLUMNS, KEYS_AT, KEYS, UPPER, KEYS_ONLY, FORWARD = 0, 1, 2, 3, 4, 5
"""Number of columns; first key column in ``key_columns``; their number; where commits must begin before to count; 1 if
only the keys of changes are read; 1 if the rows after them are wanted, too, and 2 if each single change is."""
