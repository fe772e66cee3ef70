"""Benchmarks against other clients (``python -m tests.bench``) and the growth of costs."""
