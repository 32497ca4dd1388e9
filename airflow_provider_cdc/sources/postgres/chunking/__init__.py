"""Chunks of PostgreSQL tables."""
