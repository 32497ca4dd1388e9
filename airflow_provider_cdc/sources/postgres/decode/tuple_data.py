"""Defines the letters that precede the values in pgoutput's TupleData
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html). This module does not import compiled
kernels, so code that only needs the letters does not have to load them."""

NULL_VALUE, TEXT_VALUE, UNCHANGED_VALUE = 0x6E, 0x74, 0x75
"""The byte before a value: ``n`` (NULL), ``t`` (text) or ``u``. ``u`` means that a new row has the same TOASTed value
as the old row. Images do not contain ``u``."""
