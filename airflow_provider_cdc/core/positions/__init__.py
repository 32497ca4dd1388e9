"""Positions in a source's history: GTID sets and LSNs, and the values of the option ``as_of``.

A position is a `Position` object (`GtidSet`, `Lsn`) in jobs, operators and sources. A position is text only at the
boundaries: in records (manifests, plans, results, ``_latest.json``), XComs, options, messages, and commands to a
server. `Manifest.initial`, `Run.position` and `kinds.parse_position` parse the text in records. A missing position is
None; in records, it is an empty text.

Names:

``initial``
    the run's position at its beginning. The run rewinds the rows that it reads to this position.
``start``, ``end``
    the positions that bound a part of the log. The part has all changes after ``start``, up to and including ``end``.
    The integers ``LogSegment.start`` and ``stop`` are offsets within one file or slot.
``upper``
    the bound of reads: the position at which a read is exact, or the position up to which changes count.
``log_end``
    the place in the log that corresponds to the bound of all reads. The log end is a `LogEnd`, not a position.
``position``
    the position at which a copy is exact, or another position to which a call refers.
``target``
    a requested position or time, except for the option ``as_of``, which keeps its name.

What a source records about its server when it fixes a position are `Facts`. Other coordinates have their own types:
`LogEnd`; ``LogPlace`` (MySQL: a file, an offset and the file's stamp); ``EndMark`` (PostgreSQL: a message in the log).
"""
