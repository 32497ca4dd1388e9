"""The demo: a busy shop, copied, and every row of the copy proved."""
