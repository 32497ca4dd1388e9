"""GTID sets as positions in the binary log."""
