"""``jsm top``, on a terminal and in a browser."""
