"""``jsm consumer dlq``: the commands for dead letters."""
