"""The step ``snapshot``: reads all tables in parts."""
