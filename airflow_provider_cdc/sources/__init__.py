"""The databases that can be copied."""
