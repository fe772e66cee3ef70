"""What the Spark data source does per second, beside the plain alternatives."""
