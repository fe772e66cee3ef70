"""Fixtures come from one file per concern."""

pytest_plugins = ["fix_server", "fix_threads"]
