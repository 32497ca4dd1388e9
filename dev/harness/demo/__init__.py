"""The demo: copies a busy shop, and compares every row of the copy with an independent reconstruction."""
