"""Verifies copies: their files against the record, their rows against the source, and copies with each other."""
