"""``jsm top``: a live view."""
