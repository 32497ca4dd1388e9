"""Brings rows to the position of the run: rows that were read, and files of copies."""
