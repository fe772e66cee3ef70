"""What starts, stops and shows worker processes."""
