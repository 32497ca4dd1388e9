"""The step ``consolidate``: rewinds tables or rolls them forward, and publishes the copies."""
