"""The steps of a run, one operator each."""
