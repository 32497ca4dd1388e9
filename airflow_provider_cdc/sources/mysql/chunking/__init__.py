"""Chunks of MySQL tables."""
