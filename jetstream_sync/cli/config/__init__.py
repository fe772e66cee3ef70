"""Configs of streams and consumers: from options, files and editors, and how they differ."""
