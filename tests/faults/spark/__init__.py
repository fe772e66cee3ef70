"""A job from JetStream through Spark to JetStream, with processes killed at random, and its checks."""
