"""Digests of rows, and what a commit records about the rows of copies."""
