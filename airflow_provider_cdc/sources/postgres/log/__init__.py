"""Reads the messages of a replication slot, and computes the net change of the rows."""
