"""``jsm kv``: key-value buckets."""
