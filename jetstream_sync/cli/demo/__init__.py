"""``jsm demo``: orders through a pipeline, by threads or by Spark."""
