"""The spool: pieces of the log that a run reads and records while it reads the tables."""
