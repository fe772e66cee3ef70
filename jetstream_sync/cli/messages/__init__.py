"""Commands that send and receive messages, and how messages are read and shown."""
