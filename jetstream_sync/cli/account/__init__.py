"""``jsm account``: the account as a whole."""
