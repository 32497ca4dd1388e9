"""Defines the SQL condition for columns that contain no NULL.

Since PostgreSQL 18, a NOT NULL constraint may be NOT VALID. Then ``attnotnull`` is set, although older rows may contain
a NULL. So code that relies on NOT NULL uses `HAS_NO_NULL`, and never ``attnotnull`` alone.
"""

from __future__ import annotations

HAS_NO_NULL = """(a.attnotnull AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_constraint never_checked WHERE never_checked.conrelid = a.attrelid
    AND never_checked.contype = 'n' AND never_checked.conkey = ARRAY[a.attnum] AND NOT never_checked.convalidated))"""
"""An SQL condition on a row ``a`` of pg_attribute. It is true if the column is NOT NULL and the server has checked all
rows of the table."""
