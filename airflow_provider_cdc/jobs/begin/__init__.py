"""The beginning of a run: its initial position, the copies that it rolls forward, their histories, and its places."""
