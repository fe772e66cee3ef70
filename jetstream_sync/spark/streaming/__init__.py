"""Streaming queries: the stream reader, the planning of batches, and their commits."""
