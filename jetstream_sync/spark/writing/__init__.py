"""Writing: rows become messages, and every one is known to be stored, or the task fails."""
