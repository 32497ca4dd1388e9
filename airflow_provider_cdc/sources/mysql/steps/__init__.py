"""The steps of a run on MySQL."""
