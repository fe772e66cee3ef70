"""``jsm demo``: orders through a stream and two stages of workers, each order exactly once."""
