"""Publishes all copies of a run at once. Many tasks stage the files of these copies."""
