"""`dev/soak`: random and long work, made of the tests."""
