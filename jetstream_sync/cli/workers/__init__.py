"""Commands on workers, their tasks, and services."""
