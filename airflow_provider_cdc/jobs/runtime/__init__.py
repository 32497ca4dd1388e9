"""Code that all Spark apps share: driver, tasks, retries, progress, shipping."""
