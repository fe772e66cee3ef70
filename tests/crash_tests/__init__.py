"""A JetStream to Spark to JetStream job whose processes are killed at random, and what it counts."""
