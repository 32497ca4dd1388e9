"""The rows that a run has read, by table."""
