"""Benchmarks against other clients: ``python -m tests.bench``."""
