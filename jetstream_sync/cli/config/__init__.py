"""Configs of streams and consumers: options, files, editors and differences."""
