"""MySQL's binary JSON, as text."""
