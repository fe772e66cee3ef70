"""The programs that `tests.bench.workers` measures; each does nothing but record its messages."""
