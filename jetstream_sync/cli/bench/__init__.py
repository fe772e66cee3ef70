"""``jsm bench``: how fast messages go."""
