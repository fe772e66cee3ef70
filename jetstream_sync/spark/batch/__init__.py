"""What ``spark.read`` calls."""
