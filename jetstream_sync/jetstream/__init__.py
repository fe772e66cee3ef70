"""JetStream for programs that wait: streams, consumers, publishing with acks."""
