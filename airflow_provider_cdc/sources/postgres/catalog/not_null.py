"""Columns that have no NULL.

Since PostgreSQL 18, a NOT NULL constraint may be NOT VALID: ``attnotnull`` is set, although earlier rows may have a
NULL. So code that relies on NOT NULL uses `HAS_NO_NULL`, and never ``attnotnull`` alone.
"""

from __future__ import annotations

HAS_NO_NULL = """(a.attnotnull AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_constraint never_checked WHERE never_checked.conrelid = a.attrelid
    AND never_checked.contype = 'n' AND never_checked.conkey = ARRAY[a.attnum] AND NOT never_checked.convalidated))"""
"""An SQL condition: the column of pg_attribute ``a`` is NOT NULL, and all of its rows were checked."""
