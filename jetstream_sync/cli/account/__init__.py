"""``jsm account``: the commands for the whole account."""
