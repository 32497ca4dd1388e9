"""Composes net changes, which are stored in files, by key, and filters their row images."""
