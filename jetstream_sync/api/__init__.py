"""JetStream's records and rules, without I/O: what is sent, what comes back, and what it means."""
