"""``jsm apply``: create and update streams and consumers from a file."""
