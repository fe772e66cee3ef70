"""``jsm object``: object store buckets."""
