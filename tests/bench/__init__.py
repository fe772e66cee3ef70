"""Benchmarks against other clients (``python -m tests.bench``) and against fixed limits."""
