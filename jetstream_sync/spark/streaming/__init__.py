"""What ``spark.readStream`` calls: the plan of a query, and what a commit does."""
