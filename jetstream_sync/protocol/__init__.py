"""Core NATS without I/O: bytes in, operations out, and the other way round."""
