"""Positions in a source's history: GTID sets, LSNs, and what ``as_of`` accepts.

A position is a `Position` object (`GtidSet`, `Lsn`) wherever jobs, operators and sources hand it to each other. It is
text only at the boundary: in records (manifests, plans, results, ``_latest.json``), XComs, options, messages, and what
a server is sent. `Manifest.initial`, `Run.position` and `kinds.parse_position` parse what a record has. No position is
None; records have an empty text instead, as always.

Names:

``initial``
    the run's position at its beginning. What is read is rewound to it.
``start``, ``end``
    the positions between which a stretch of the log lies: what comes after ``start``, up to ``end``. The integers
    ``LogSegment.start`` and ``stop`` are offsets within one file or slot.
``upper``
    the bound of reads: the exact position that something was read at, or up to which changes count.
``log_end``
    the place in the log that corresponds to the bound of all reads. It is a `LogEnd`, not a position.
``position``
    the one that a copy is exact at, or that a call is about when it is none of those above.
``target``
    a position or a time that is asked for, but for the option ``as_of``, which keeps its name.

Other coordinates have types of their own: `LogEnd`; ``LogPlace`` (MySQL: a file, an offset and the file's stamp);
``EndMark`` (PostgreSQL: a message in the log).
"""
