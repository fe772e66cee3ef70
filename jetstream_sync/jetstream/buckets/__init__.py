"""Buckets: key-value stores and object stores, as applications of streams."""
