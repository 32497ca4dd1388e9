"""The code of the Spark apps. Python tasks read rows from the source and write them to files. The JVM passes on only
the orders, which describe the work of each task."""
