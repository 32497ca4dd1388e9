"""Defines the letters that precede the values in pgoutput's TupleData
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html). This module does not import compiled
kernels, so code that only needs the letters does not have to load them."""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import CarriedField

NULL_VALUE, TEXT_VALUE, UNCHANGED_VALUE = 0x6E, 0x74, 0x75
"""The byte before a value: ``n`` (NULL), ``t`` (text) or ``u``. ``u`` means that a new row has the same TOASTed value
as the old row. Images do not contain ``u``."""


def constant_field(one: CarriedField) -> bytes:
    """Return the field of a new column in the tuples of earlier rows. Columns that are not new are NULL."""
    if one.was or one.constant is None:
        return bytes([NULL_VALUE])
    text = bytes.fromhex(one.constant)
    return bytes([TEXT_VALUE]) + len(text).to_bytes(4, "big") + text
