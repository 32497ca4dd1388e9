"""The step ``consolidate``: rewind or roll forward, and publish."""
