"""``jsm apply``: streams and consumers as a file says."""
