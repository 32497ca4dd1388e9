"""Sinks: publish the copies that many tasks staged, all at once."""
