"""``jsm consumer``: the commands for consumers."""
