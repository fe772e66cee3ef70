"""Partitioned consumer groups, as applications of consumers."""
