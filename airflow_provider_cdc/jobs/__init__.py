"""The code of the Spark apps. Tasks write rows from the source to files themselves; the JVM handles only orders."""
