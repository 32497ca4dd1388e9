"""`dev/soak`: random and long tests."""
