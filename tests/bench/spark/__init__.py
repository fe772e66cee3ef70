"""Throughput of the Spark data source compared with plain alternatives."""
