"""Where copies go: staged by many tasks, published at once."""
