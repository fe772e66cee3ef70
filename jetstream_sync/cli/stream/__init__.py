"""``jsm stream``: the commands for streams."""
