"""Commands on consumers and dead letters."""
