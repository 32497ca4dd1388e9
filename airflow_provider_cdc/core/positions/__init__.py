"""Positions in a source's history: GTID sets, LSNs, and what ``as_of`` accepts."""
