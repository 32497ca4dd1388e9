"""Reads the messages of a replication slot, and nets the row changes in them."""
