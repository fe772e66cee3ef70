"""Writing rows as messages: a task succeeds only if the stream has stored all of its rows."""
