"""What receives messages, runs their handlers and settles them."""
