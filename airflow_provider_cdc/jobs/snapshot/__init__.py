"""The step ``snapshot``: reads all parts of all tables."""
