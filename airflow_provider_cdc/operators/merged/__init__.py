"""The tasks that unite the shards of several sources: checks before the reads begin, and the publication."""
