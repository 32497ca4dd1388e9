"""What the Spark apps do. Tasks carry rows from the source to files themselves; the JVM carries only their orders."""
