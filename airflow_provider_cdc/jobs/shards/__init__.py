"""Merged tables: keys that occur in several shards."""
