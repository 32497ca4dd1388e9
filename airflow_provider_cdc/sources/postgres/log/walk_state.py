"""The layout of the arrays through which Python and the kernel in ``walk.py`` exchange data."""

from __future__ import annotations

# Return codes of `walk`.
MORE, DONE, ODD, NO_ROOM = 0, 1, 2, 3
"""In this order: all messages are processed; the current transaction is beyond the requested end; the caller must
handle a message; the net change needs ``state[WANTED]`` more words."""
SHAPE, NOT_WHOLE, NO_ROOM_FOR_CHANGES = 4, 5, 6
"""In this order: a counted change has another number of columns than the table, or no value for its key; a counted
change does not have the whole old row; the list of single changes needs ``state[WANTED]`` more words."""
BAD_LENGTH, BAD_TUPLE, BAD_COMMIT, OUT_OF_PLACE, NO_RELATION = 11, 12, 13, 14, 15
"""Codes for a damaged message, and for messages in the wrong order."""

# `state`, int64.
AT = 0
"""Number of the next message in the batch."""
INITIAL = 1
STOP = 2
"""Transactions count if their commit is at or after INITIAL and before STOP."""
PHASE = 3
COMMIT = 4
"""Position of the commit record of the current transaction or, between two transactions, of the last transaction."""
XID = 5
COUNTS = 6
"""1 if the current transaction is after the initial position."""
ORDER = 7
"""Number of the last row change. Each change increases the number."""
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
# OID plus one (0: free), and the index of the tracked table, or UNTRACKED. If the relation's columns must be reordered
# or left out, the upper half of the index is 1 plus a place in ``orders``; otherwise it is 0. A partition may have
# another column order than its root, and some columns of a table may not be read. At that place, ``orders`` first has
# the number of the relation's columns. For each column of the table, it then has the column's place in the relation, or
# `NOT_READ`. A number below `NOT_READ` stands for a constant field, for a column that was added later: `CONSTANT` minus
# the number is the field's place in ``constants``.
UNTRACKED = -1
NOT_READ = -1
CONSTANT = -2

# `tables`: `TABLE_WORDS` words for each tracked table.
TABLE_WORDS = 6
COLUMNS, KEYS_AT, KEYS, UPPER, KEYS_ONLY, FORWARD = 0, 1, 2, 3, 4, 5
"""The words, in this order: the number of columns; the place of the first key column in ``key_columns``; the number of
key columns; the position before which the commit of a counted change begins; 1 if only the keys of changes are read; 1
if the rows after changes are also needed, 2 if each single change is needed, too."""
