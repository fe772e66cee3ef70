"""Benchmarks: against other clients (``python -m tests.bench``) and against our own limits."""
