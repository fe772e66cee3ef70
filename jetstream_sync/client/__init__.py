"""Threads and blocking calls: core NATS for programs that wait."""
