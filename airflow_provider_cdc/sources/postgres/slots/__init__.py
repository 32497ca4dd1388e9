"""Replication slots and publications."""
