"""Steps that run on Spark: ``spark-submit``, its supervision and its log."""
