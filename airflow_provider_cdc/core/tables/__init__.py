"""Tables and their rows: names, columns, chunks, keys as bytes, net changes."""
